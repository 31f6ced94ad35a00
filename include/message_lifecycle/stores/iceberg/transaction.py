"""Several tables in one commit of the catalog, all or none, if the catalog is configured to be atomic (DEL-4).

A REST catalog may offer `transactions/commit`. The name does not say whether that request is atomic. So only a catalog with the setting
`lifecycle.atomic-transactions` gets it. The commit of a table is the same as a commit of its own would be. The same judges run in each
attempt, and Iceberg checks the same requirements: the table's uuid, and main where the attempt found it.

We do not trust the catalog's answer. After the commit, we search each table for the plan's id. A missing commit follows on its own, in the
plan's order, as everywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, PlanConflict, no_transactions
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import (
    AlreadyPublished,
    Judge,
    Make,
    Steps,
    Walk,
    attempt_of,
    find_after_error,
    refusals,
)
from message_lifecycle.stores.iceberg.java import ATOMIC, PROPERTIES, Java, Jvm, identifier, java_class, thrown
from message_lifecycle.stores.iceberg.layout import AT_ONCE
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_metadata import swap_at_once
from message_lifecycle.stores.iceberg.witness import Known

logger = logging.getLogger(__name__)
SETTING = f"{PROPERTIES}.{ATOMIC}"


def commits_at_once(jvm: Jvm) -> bool:
    """True if the catalog commits several tables at once, all or none.

    Raises:
        NoTransactions: The configuration says so, but the catalog does not offer it.
    """
    if not jvm.is_atomic:
        return False
    if not jvm.capabilities.has_transactions:
        raise no_transactions(SETTING, "the catalog is no REST catalog, and commits one table at a time")
    try:
        jvm.lake.commitTransaction(jvm.jvm.java.util.ArrayList())
    except thrown() as error:
        # Iceberg first checks the endpoints that the catalog names in /v1/config, and then refuses to send a transaction of no table.
        if java_class(error) == "UnsupportedOperationException":
            raise no_transactions(SETTING, "the catalog does not offer to commit several tables at once (transactions/commit)") from error
        if java_class(error) != "IllegalArgumentException":
            raise
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A plan's one commit on a table of this kind, ready and not made (`ports.Prepared`).

    `of` and `since` are the arguments of `fence.commit_once`.
    """

    jvm: Engine
    topic: TopicName
    kind: str
    table: Java
    plan_id: str
    judge: Judge
    make: Make
    steps: Steps
    of: str
    since: int | None

    def commit(self) -> Known:
        """By itself. Raises PlanConflict, TableBusy, CommitUnknown."""

        def commit() -> None:
            fence.fenced_commit(self.table, self.judge, self.make, what=self._what)

        return fence.commit_once(self.table, self.plan_id, commit, steps=self.steps, of=self.of, since=self.since)

    @property
    def place(self) -> Place:
        return self.topic.namespace, self.topic.table(self.kind)

    @property
    def _what(self) -> str:
        return f"publishing plan {self.plan_id}"

    def commit_with(self, others: Sequence[Self]) -> None:
        """Raises PlanConflict, TableBusy and CommitUnknown, and then none of them is there."""
        commits, what = (self, *others), self._what
        for one in commits:
            one.steps(f"before_{one.of}")
        ended: LifecycleError = CommitUnknown(what)
        with engine_failures():
            try:
                with refusals(what):
                    swap_at_once(
                        [attempt_of(one.table, one.judge, _mark_commits(one.make)) for one in commits], partial(_commit, commits), what=what
                    )
            except AlreadyPublished:
                pass
            except (PlanConflict, CommitUnknown) as error:
                ended = error
            except CommitRefused as error:
                # Iceberg's guard came before ours, and knows no plans.
                ended = PlanConflict(self.plan_id, error.reason)
            for one in commits:
                with suppress(Exception):  # the catalog may be gone: only the result of the commit counts
                    one.jvm.forget(one.topic, kind=one.kind)
            missing = _missing(commits, ended)
        if len(missing) == len(commits):
            raise ended
        if missing:
            logger.warning(_HALF, self.plan_id, SETTING, len(commits), ", ".join(".".join(one.place) for one in missing))
        for one in commits:
            one.steps(f"after_{one.of}")


def _mark_commits(make: Make) -> Make:
    """Mark each commit as one of several. If only some of a plan's tables have theirs, the mark shows that the catalog made only a part."""

    def marked(on: Java, walk: Walk) -> Iterator[Java]:
        for update in make(on, walk):
            update.set(AT_ONCE, "true")
            yield update

    return marked


_HALF = (
    "plan %s: %s says that the catalog commits several tables all or none, and of %d it has not committed %s. Unless another run of the plan has "
    "made them one by one, it is not atomic: take the setting out. What is missing follows in its own commit"
)


def _commit(commits: Sequence[Ready], made: Sequence[tuple[Java, Java]]) -> None:
    jvm = commits[0].jvm
    of_table = jvm.jvm.org.apache.iceberg.catalog.TableCommit
    several = jvm.jvm.java.util.ArrayList()
    for one, (base, changed) in zip(commits, made, strict=True):
        several.add(of_table.create(identifier(jvm, one.place), base, changed))
    jvm.lake.commitTransaction(several)


def _missing(commits: Sequence[Ready], ended: LifecycleError) -> list[Ready]:
    """Return the commits that the catalog has not made.

    If one commit is there, the catalog has finished. Missing commits are then checked once more, because they may have come between two
    checks.
    """
    missing = list(commits)
    for _ in commits:
        there, missing = missing, [one for one in missing if find_after_error(ended, one.table, one.plan_id, one.since) is None]
        if len(missing) in (0, len(commits), len(there)):
            break
    return missing
