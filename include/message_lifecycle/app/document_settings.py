"""Settings of users and of single documents, below the topic's, and who owns what (SNP-9): checked against every level, then kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.document import OwnChanges, OwnSettings
from message_lifecycle.model.errors import InvalidSetting, not_a_document_topic
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import OWN_SETTINGS, Policy, Value, topic_changes
from message_lifecycle.model.topic_config import check_documents


def alter_user(s: Services, name: TopicName, user: str, changes: Mapping[str, Value | None]) -> None:
    """Settings of all documents that the user owns; None unsets. All or nothing. Raises InvalidSetting, InvalidName, NotADocumentTopic."""
    alter_own_settings(s, name, OwnChanges(users={user: changes}))


def alter_document(
    s: Services, name: TopicName, document: str, changes: Mapping[str, Value | None], *, owner: str | None = None, disown: bool = False
) -> None:
    """Settings of one document, and whose it is. As `alter_user`; the document need not have a change yet."""
    owners = {document: owner} if owner is not None or disown else {}
    alter_own_settings(s, name, OwnChanges(documents={document: changes}, owners=owners))


def alter_own_settings(s: Services, name: TopicName, changes: OwnChanges) -> None:
    """Of several users and documents at once, all or nothing. As `alter_user`."""
    policy = policy_of(s, name)
    if policy.fold is None:
        raise not_a_document_topic(str(name))
    s.ledger.alter_own_settings(
        name,
        OwnChanges(
            users={user: _checked(settings, f"user {user} of {name}") for user, settings in changes.users.items()},
            documents={document: _checked(settings, f"document {document} of {name}") for document, settings in changes.documents.items()},
            owners=changes.owners,
        ),
        check=lambda after: check_levels(policy, after, where=str(name)),
    )


def check_levels(policy: Policy, own: OwnSettings, *, where: str) -> None:
    """What settings must be together holds at every level, whichever of them was changed (SNP-5). Raises InvalidSetting."""
    for place, narrowed in _levels(policy, own):
        check_documents(narrowed, where=f"{place} of {where}")


def _levels(policy: Policy, own: OwnSettings) -> Iterator[tuple[str, Policy]]:
    for user, settings in own.users.items():
        yield f"user {user}", policy.narrowed(settings)
    for document, settings in own.documents.items():
        yield f"document {document}", policy.narrowed(own.users.get(own.owners.get(document, ""), {}), settings)


def _checked(changes: Mapping[str, Value | None], where: str) -> dict[str, Value | None]:
    """All of them before any is kept."""
    for setting, value in changes.items():
        if setting not in OWN_SETTINGS:
            raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
    return topic_changes(changes, where=where)
