"""Commits by other engines between each pair of our verbs: the plan is exact, refused by name, or planned again (DEL-4, MSG-4).

Whatever comes in between, no offset is given twice, nothing unread goes, and nothing goes that nobody asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.effort import sample
from tests.spark.lake import Lake, tables
from tests.spark.other_engines import WORDS, Topic

from message_lifecycle.app import steps, witness
from message_lifecycle.model.errors import LifecycleError, code_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages, UndoPlan
from message_lifecycle.stores.iceberg.layout import WITNESS

EXPIRING: Mapping[str, Any] = {"message_expiry": 86_400, "segment_max_seconds": 60}
COMPACTED: Mapping[str, Any] = {"cleanup_policy": "compact"}
READ = 1
"""The last offset that the consumer has read."""


class Between:
    """A topic, the verbs in their order, and what another engine does after one of them."""

    def __init__(self, topic: Topic, work: str) -> None:
        self.topic, self.work, self.plan_id = topic, work, ""
        self.verbs: dict[str, Callable[[], object]] = {
            "ingest": lambda: topic.ingest("b", "c", "d", at=1_600_001_000),
            "consumer": lambda: topic.ledger.commit(topic.name, "billing", 0, READ, None, end_offset=4),
            "plan": self._plan,
            "stage": lambda: steps.stage(topic.s, self.plan_id),
            "gate": lambda: steps.gate(topic.s, self.plan_id),
            "publish": self._publish,
            "verify": lambda: steps.verify(topic.s, self.plan_id),
        }
        if work == "undo":
            self.verbs["undo"] = lambda: topic.run(UndoPlan(plan_id=self.plan_id))

    @property
    def asked(self) -> Any:
        return {"cleaner": "message_cleaner", "compaction": "compaction"}.get(self.work, RemoveMessages(positions=((0, 0),)))

    def may_go(self) -> set[int]:
        return {"cleaner": set(range(READ + 1)), "compaction": set()}.get(self.work, {0})

    def _plan(self) -> None:
        self.plan_id = steps.plan(self.topic.s, self.topic.name, as_of=self.topic.ledger.now(), work=self.asked).plan.plan_id

    def _publish(self) -> None:
        record = self.topic.ledger.record(self.plan_id)
        if record.report is not None and record.report.judgement == "needs_approval" and record.approval is None:
            steps.approve(self.topic.s, self.plan_id, granted=True, by="ada", text="as planned")
        steps.publish(self.topic.s, self.plan_id)

    def again(self) -> None:
        """As a run does where the table changed under a plan."""
        self.topic.run(self.asked)


def _recreate(topic: Topic, *, as_ours: bool) -> None:
    properties = tables().load(topic.name).properties
    kept = ", ".join(
        "'{}' = '{}'".format(key, value.replace("\\", "\\\\")) for key, value in properties.items() if key.startswith("lifecycle.")
    )
    topic.sql("CREATE TABLE {t}_kept USING iceberg AS SELECT * FROM {t}".replace("{t}_kept", topic.aside))
    topic.sql("DROP TABLE {t}")
    own = f"TBLPROPERTIES ('format-version' = '3', {kept}) " if as_ours else ""
    # Our properties have braces, which are no names of tables.
    topic.raw(f"CREATE TABLE {topic.place} USING iceberg {own}AS SELECT * FROM {topic.aside}")


def _drop_branches(topic: Topic) -> None:
    for ref in tables().load(topic.name).refs():
        if ref != "main":
            topic.sql("ALTER TABLE {t} DROP BRANCH `" + ref + "`")


def _rename_and_back(topic: Topic) -> None:
    topic.rename_away()
    topic.rename_back()


FOREIGN: Mapping[str, Callable[[Topic], object]] = {
    "append": lambda topic: topic.sql(
        "INSERT INTO {t} SELECT partition, 40 + offset, append_time, event_time, key, value, headers, size_bytes, 40, expires_at, never, "
        "origin_offset FROM {t} WHERE offset = 0"
    ),
    "delete": lambda topic: topic.sql("DELETE FROM {t} WHERE offset = 2"),
    "overwrite": lambda topic: topic.sql("UPDATE {t} SET value = cast('other' AS binary) WHERE offset = 2"),
    "rewrite": lambda topic: topic.rewrite(),
    "rewrite and expiry": lambda topic: (topic.rewrite(), topic.expire()),
    "expiry": lambda topic: topic.expire(),
    "rollback": lambda topic: topic.roll_back(topic.first),
    "rollback and expiry": lambda topic: (topic.roll_back(topic.first), topic.expire()),
    "branch": lambda topic: topic.sql("ALTER TABLE {t} CREATE BRANCH audit"),
    "tag": lambda topic: topic.sql("ALTER TABLE {t} CREATE TAG yesterday"),
    "stage dropped": _drop_branches,
    "property": lambda topic: topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('another.property' = '1')"),
    "our property removed": lambda topic: topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')"),
    "setting": lambda topic: topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('lifecycle.message_expiry' = '172800')"),
    "rename and back": _rename_and_back,
    "rename": lambda topic: topic.rename_away(),
    "replace": lambda topic: topic.sql("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t} WHERE offset > 0"),
    "drop and create": lambda topic: _recreate(topic, as_ours=False),
    "drop and create as ours": lambda topic: _recreate(topic, as_ours=True),
}
POINTS = {
    "cleaner": ("ingest", "consumer", "plan", "stage", "gate", "publish", "verify"),
    "request": ("plan", "stage", "gate", "publish"),
    "compaction": ("plan", "stage", "gate", "publish"),
    "undo": ("publish", "verify"),
}
REFUSALS = {
    "LogStateLost",
    "LogRolledBack",
    "PlanConflict",
    "NotReady",
    "ForeignTable",
    "UnknownTopic",
    "TopicMissing",
    "UnknownPlan",
    "UndoSourceGone",
    "NotUndoable",
    "CompactedTableMissing",
    "CommitNotOnMain",
    "CommitLost",
    "TableUnreadable",
    "InvalidRequest",
    "NothingToUndo",
}
EVERY = [(work, point, foreign) for work, points in POINTS.items() for point in points for foreign in FOREIGN]
KEPT = [
    ("cleaner", "ingest", "rewrite and expiry"),
    ("cleaner", "stage", "rollback"),
    ("cleaner", "gate", "our property removed"),
    ("request", "plan", "delete"),
    ("request", "publish", "rewrite and expiry"),
    ("compaction", "publish", "expiry"),
    ("undo", "publish", "overwrite"),
]


@pytest.fixture
def topic(lake: Lake, tmp_path: Path) -> Iterator[Callable[[str], Topic]]:
    made: list[Topic] = []

    def make(work: str) -> Topic:
        settings = COMPACTED if work == "compaction" else EXPIRING if work == "cleaner" else {}
        made.append(Topic(lake, tmp_path, TopicName.parse(f"{lake.stream}/b {token_hex(4)}"), **settings))
        return made[-1]

    yield make
    for one in made:
        one.ledger.close()


@pytest.mark.parametrize(("work", "point", "foreign"), sample(EVERY, *KEPT))
def test_whatever_comes_in_between(topic: Callable[[str], Topic], work: str, point: str, foreign: str) -> None:
    one = topic(work)
    between = Between(one, work)
    one.ingest("a")
    one.first = one.head()
    after: Counter[int] | None = None
    codes: list[str] = []
    for verb, carry_out in between.verbs.items():
        try:
            carry_out()
        except LifecycleError as error:
            codes.append(code_of(error))
            if codes[-1] == "PlanConflict":
                _tried(between.again, codes)
            break
        if verb == point:
            FOREIGN[foreign](one)
            after = Counter(one.offsets_by_sql())
    one.come_back()
    assert after is not None, "the verbs before it went well"
    assert set(codes) <= REFUSALS
    gone = after - Counter(one.offsets_by_sql())
    assert set(gone) <= between.may_go(), f"{codes}: nobody asked for these to go"
    if foreign in ("drop and create", "replace", "drop and create as ours"):
        assert codes or point == "verify", "another table is never written to as if it were ours"
        return
    if one.status_codes() & {"LogStateLost", "LogRolledBack"}:
        witness.repair(one.s, one.name, **WORDS, accept_rollback=True)
    _tried(between.again, codes)
    one.clear_inbox()
    ends = one.ingest("z").end_offsets
    there = one.offsets_by_sql()
    assert max(Counter(there).values()) == 1, "no offset is there twice"
    assert ends[0] - 1 > max((*after, 3)), "no offset is given again"
    unread = {offset for offset in after if offset not in between.may_go()}
    assert unread <= set(there), f"{codes}: what nobody asked for, or nobody has read, stays"
    assert set(codes) <= REFUSALS


def _tried(carry_out: Callable[[], object], codes: list[str]) -> None:
    try:
        carry_out()
    except LifecycleError as error:
        codes.append(code_of(error))
