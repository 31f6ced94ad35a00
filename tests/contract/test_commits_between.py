"""Every commit that another engine can make, between each two of our verbs (DEL-4, MSG-4).

The plan is exact, or refused by name, or planned again. No other message is lost, and no offset is given twice afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product

import pytest

from message_lifecycle.app import steps, witness
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from tests.commits_of_others import ANOTHER, COMMITS, VERBS, Other, bring_back, carry_out, named, run_again
from tests.contract.conftest import MakeWorld, on
from tests.contract.test_requests import HEADERS
from tests.effort import sample
from tests.undone import approved

SECOND = 1_000_000
AS_OF_S = 600
SETTINGS: dict[str, Value] = {"max_removed_fraction": 1.0, "segment_max_seconds": 60}
Rows = dict[int, tuple[bytes | None, bytes | None, int]]
"""Key, value and time in seconds, by offset: each log here has one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """An operation. `takes`: the offsets that it takes from a log; the one of a compaction takes none."""

    work: Callable[[Services, TopicName], Work]
    takes: Callable[[Rows], Iterable[int]]
    settings: dict[str, Value] = field(default_factory=dict)
    is_undoable: bool = True


def _erase(s: Services, name: TopicName) -> Work:
    return EraseKey(request_id=ask(s, [b"a"], topics=[name], forbid=False, by="ada", why="a letter of 3 May").request_id)


def _of_key(rows: Rows) -> Iterable[int]:
    return (offset for offset, (key, _, _) in rows.items() if key == b"a")


DELETION = Removal(work=lambda *_: RemoveMessages(positions=((0, 1), (0, 4))), takes=lambda _: (1, 4))
OPERATIONS = {
    "cleaner": Removal(
        work=lambda *_: "message_cleaner",
        takes=lambda rows: (offset for offset, (_, _, at) in rows.items() if at == 1 or offset == 4),
        settings={"message_expiry": 300, "allow_msg_ttl": True},
    ),
    "retention": Removal(work=lambda *_: "message_cleaner", takes=lambda rows: sorted(rows)[:-5], settings={"max_records": 5}),
    "deletion": DELETION,
    "purge": Removal(work=lambda *_: PurgeKey(key=b"a"), takes=_of_key),
    "compaction": Removal(
        work=lambda *_: "compaction", takes=lambda _: (), settings={"cleanup_policy": "compact,delete"}, is_undoable=False
    ),
    "erasure": Removal(work=_erase, takes=_of_key, is_undoable=False),
    "undo": DELETION,
}
PAIRS = list(product(OPERATIONS, VERBS))
"""The commit of the other engine comes after the verb; after the last, before an undo."""
CASES = [(*pair, commit) for pair, commit in product(PAIRS, COMMITS)]
FOUND = [
    ("erasure", "gate", "append"),
    ("erasure", "stage", "append and expire"),
    ("erasure", "stage", "rewrite and expire"),
    ("deletion", "publish", "create again alike"),
]
"""Cases that once gave an offset twice, or ended without a name."""
OTHERS = [commit for commit in COMMITS if commit not in {found for *_, found in FOUND}]
KEPT = [*((list(OPERATIONS)[at % len(OPERATIONS)], VERBS[at % len(VERBS)], commit) for at, commit in enumerate(OTHERS)), *FOUND]
"""Each commit once. Each operation and each verb meets several."""
STOPPED = ("LogRolledBack", "LogStateLost", "AppendedBelowEnd")
"""Until a person repairs the log's state."""


class Log:
    """A topic of three segments, the plan's work on it, and what was ever seen there."""

    def __init__(self, world: World, operation: str) -> None:
        self.world, self.s = world, world.services
        self.operation = OPERATIONS[operation]
        self.name = TopicName(stream=f"{world.scratch}.between", topic=operation)
        create_topic(self.s, self.name, partitions=1, settings={**SETTINGS, **self.operation.settings})
        ttl = "1s" if "allow_msg_ttl" in self.operation.settings else ""
        self.append((b"a", 1, ""), (b"b", 1, ""), (b"c", 1, ""), (b"a", 500, ""), (b"b", 500, ttl), (b"c", 500, ""))
        self.append((b"a", 570, ""), (b"d", 570, ""))
        self.seen = set(self.rows())
        self.at(AS_OF_S)
        self.back: Rows = {}
        if operation == "undo":
            taken = self.taken()
            self.work: Work = UndoPlan(plan_id=self.run(self.operation.work(self.s, self.name)).plan_id or "")
            self.back = taken
        else:
            self.work = self.operation.work(self.s, self.name)

    def append(self, *messages: tuple[bytes, int, str]) -> None:
        new = [NewMessage(append_time=Instant(at * SECOND), key=key, value=b"v", headers=HEADERS.get(ttl, ())) for key, at, ttl in messages]
        self.world.writer.append(self.name, new, policy_of(self.s, self.name))

    def at(self, seconds: int) -> Instant:
        self.now = Instant(seconds * SECOND)
        self.world.set_now(self.now)
        return self.now

    def rows(self) -> Rows:
        found = list(self.s.reader.messages(self.name))
        assert len({one.offset for one in found}) == len(found), "an offset is given twice"
        return {one.offset: (one.key, one.value, (one.append_time or 0) // SECOND) for one in found}

    def look(self) -> Rows:
        rows = self.rows()
        self.seen |= set(rows)
        return rows

    def taken(self, rows: Rows | None = None) -> Rows:
        now = self.rows() if rows is None else rows
        return {offset: now[offset] for offset in self.operation.takes(now) if offset in now}

    def run(self, work: Work) -> Outcome:
        return steps.run(self.s, self.name, as_of=self.now, approver=approved, work=work)

    def after_work(self, rows: Rows, planned: Rows) -> Rows:
        """What is left of `rows` by a plan that was made when it took `planned`."""
        if self.back:
            return self.back | rows
        return {offset: row for offset, row in rows.items() if offset not in planned}


def with_commit(log: Log, gap: str, commit: str) -> tuple[Rows | None, Rows, str, Other]:
    """Carry out the work with the other's commit behind a verb. Return the log just after that commit (None: there is none), what was planned,
    how the plan ended, and the other engine."""
    planned = log.taken()
    record = steps.plan(log.s, log.name, as_of=log.now, work=log.work)
    other = other_at(log.name, record.plan.plan_id)
    just_after: list[Rows] = []

    def meddle() -> None:
        log.look()
        COMMITS[commit](other)
        if commit not in ANOTHER:
            just_after.append(log.look())

    ended = carry_out(log.s, record, gap, meddle)
    return just_after[0] if just_after else None, planned, ended, other


def other_at(name: TopicName, plan_id: str) -> Other:
    """Another engine at the log. It brings two messages past the end."""
    row = {"partition": 0, "segment": 8, "append_time": 580 * SECOND, "key": b"theirs", "value": b"v", "headers": [], "size_bytes": 7}
    return Other(
        name=name,
        new=[{**row, "offset": offset} for offset in (8, 9)],
        planned=lambda row: row["offset"] == 1,
        another=lambda row: row["offset"] == 5,
        newest=lambda row: row["segment"] == 6,
        edit={"value": b"corrected"},
        plan_id=plan_id,
    )


def take_two(log: Log, commit: str) -> None:
    """Two more messages have offsets that nobody has seen; a log whose state is in doubt is repaired by a person first."""
    for _ in range(3):
        try:
            log.append((b"x", AS_OF_S + 2, ""), (b"y", AS_OF_S + 2, ""))
            break
        except LifecycleError as error:
            code = named(error)
            if commit == "create again":
                return  # no table of ours
            assert code in STOPPED, code
            witness.repair(log.s, log.name, by="ada", text="as agreed", accept_rollback=True)
    rows = log.rows()
    new = [offset for offset, (key, _, _) in rows.items() if key in (b"x", b"y")]
    assert len(new) == 2, rows
    assert not set(new) & log.seen, (new, log.seen)


@pytest.mark.parametrize("store_kind", on("iceberg")[:1], indirect=True)
@pytest.mark.parametrize(("operation", "gap", "commit"), sample(CASES, *KEPT))
def test_a_commit_of_another_engine_between_two_verbs(make_world: MakeWorld, operation: str, gap: str, commit: str) -> None:
    log = Log(make_world({}), operation)
    was_published = gap in ("publish", "verify")
    just_after, planned, ended, other = with_commit(log, gap, commit)
    if commit == "rename":
        assert ended == "published" if gap == "verify" else ended not in ("published", "no_op"), ended
        bring_back(other)
        just_after = log.look()
    if commit.startswith("create again"):
        take_two(log, commit)
        return
    assert just_after is not None
    exact = just_after if was_published else log.after_work(just_after, planned)
    if ended == "published":
        assert log.look() == exact
    else:
        assert log.look() in (just_after, exact), ended
        ended = f"{ended}, {run_again(log.s, log.name, log.work, log.at(AS_OF_S + 1))}"
        assert log.look() in (just_after, exact, log.after_work(just_after, log.taken(just_after))), ended
    if operation == "compaction":
        require_one_of_each_key(log)
    if gap == "verify" and log.operation.is_undoable and not log.back:
        undo(log, other.plan_id, just_after, planned)
    take_two(log, commit)


def require_one_of_each_key(log: Log) -> None:
    """In the view, up to where it goes."""
    try:
        view = log.s.stores.view.view(log.name)
        horizon = -1 if view is None else view.horizons.get(0, -1)
        keys = [message.key for message in read_compacted(log.s, log.name) if message.offset <= horizon]
    except LifecycleError as error:
        named(error)
    else:
        assert len(keys) == len(set(keys))


def undo(log: Log, plan_id: str, rows: Rows, planned: Rows) -> None:
    """What went comes back, or the undo is refused by name."""
    ended = run_again(log.s, log.name, UndoPlan(plan_id=plan_id), log.at(AS_OF_S + 1))
    assert log.look() == (planned | rows if ended == "published" else rows), ended
