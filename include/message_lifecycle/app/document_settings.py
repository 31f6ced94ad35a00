"""Settings of users and of single documents, below the topic's, and who owns what (SNP-9): checked against every level, then kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from message_lifecycle.app.steps import Services, policy_of
from message_lifecycle.model.document import OwnSettings
from message_lifecycle.model.errors import InvalidSetting, NotADocumentTopic
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.settings import OWN_SETTINGS, Policy, Value, topic_changes
from message_lifecycle.model.topic_config import check_documents


def alter_user(s: Services, name: TopicName, user: str, changes: Mapping[str, Value | None]) -> None:
    """Settings of all documents that the user owns; None unsets. All or nothing. Raises InvalidSetting, InvalidName, NotADocumentTopic."""
    user = normalise_name(user)
    checked = _checked(changes, f"user {user} of {name}")
    own = s.ledger.own_settings(name)
    after = replace(own, users={**own.users, user: _changed(own.users.get(user, {}), checked)})
    check_levels(_documents_policy(s, name), after, where=str(name))
    for setting, value in checked.items():
        s.ledger.set_own_setting(name, "user", user, setting, value)


def alter_document(
    s: Services, name: TopicName, document: str, changes: Mapping[str, Value | None], *, owner: str | None = None, disown: bool = False
) -> None:
    """Settings of one document, and whose it is. As `alter_user`; the document need not have a change yet."""
    document = normalise_name(document)
    checked = _checked(changes, f"document {document} of {name}")
    own, owner = s.ledger.own_settings(name), None if owner is None else normalise_name(owner)
    owners = {key: value for key, value in own.owners.items() if not (disown and key == document)}
    after = replace(
        own,
        documents={**own.documents, document: _changed(own.documents.get(document, {}), checked)},
        owners=owners if owner is None else {**owners, document: owner},
    )
    check_levels(_documents_policy(s, name), after, where=str(name))
    if owner is not None or disown:
        s.ledger.set_owner(name, document, owner)
    for setting, value in checked.items():
        s.ledger.set_own_setting(name, "document", document, setting, value)


def check_levels(policy: Policy, own: OwnSettings, *, where: str) -> None:
    """What settings must be together holds at every level, whichever of them was changed (SNP-5). Raises InvalidSetting."""
    for place, narrowed in _levels(policy, own):
        check_documents(narrowed, where=f"{place} of {where}")


def _levels(policy: Policy, own: OwnSettings) -> Iterator[tuple[str, Policy]]:
    for user, settings in own.users.items():
        yield f"user {user}", policy.narrowed(settings)
    for document, settings in own.documents.items():
        yield f"document {document}", policy.narrowed(own.users.get(own.owners.get(document, ""), {}), settings)


def _documents_policy(s: Services, name: TopicName) -> Policy:
    policy = policy_of(s, name)
    if policy.fold is None:
        raise NotADocumentTopic(str(name))
    return policy


def _checked(changes: Mapping[str, Value | None], where: str) -> dict[str, Value | None]:
    """All of them before any is kept."""
    for setting, value in changes.items():
        if setting not in OWN_SETTINGS:
            raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
    return topic_changes(changes, where=where)


def _changed(before: Mapping[str, Value], changes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {setting: value for setting, value in {**before, **changes}.items() if value is not None}
