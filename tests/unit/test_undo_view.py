"""Taking back what requests took from a log and its compacted view, on random histories in memory (DEL-7, P3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, ViewRow
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.undo import Returning
from message_lifecycle.operations import undo
from tests.effort import effort, generated
from tests.errors import raises, suppressed
from tests.logs import SECOND
from tests.undone import run

NAME = TopicName(stream="s", topic="t")
PARTITIONS = 2
KEYS = st.sampled_from([None, b"a", b"a", b"b", b"c"])
APPENDS = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), KEYS, st.sampled_from([b"v", b"v", None]), st.integers(0, 5)), min_size=1, max_size=6
)
Step = Sequence[tuple[int, bytes | None, bytes | None, int]] | frozenset[int] | None
"""What is appended; or which of the messages that nobody has removed yet go, by their place among them; or a compaction."""
POLICIES = st.sampled_from([{}, {"delete_retention": 100.0}, {"delete_retention": 10000.0, "winner": "event_time"}])
STEPS = st.lists(st.one_of(APPENDS, st.none(), st.frozensets(st.integers(0, 20), min_size=1, max_size=3)), min_size=2, max_size=12)


class History:
    """The steps carried out, but for the removals that are `left_out`."""

    def __init__(self, steps: Iterable[Step], own: dict[str, Value], left_out: frozenset[int] = frozenset()) -> None:
        self.world: World = memory_world({})
        create_topic(self.world.services, NAME, partitions=PARTITIONS, settings={"max_removed_fraction": 1.0, **own})
        self.plans: dict[int, str] = {}
        there: list[tuple[int, int]] = []
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for at, step in enumerate(steps):
            self.at_s = 10 * (at + 1)  # of a step, whatever has gone before it
            if step is None:
                self.run("compaction")
            elif isinstance(step, frozenset):
                going = tuple(place for index, place in enumerate(there) if index in step)
                there = [place for place in there if place not in going]
                if going and at not in left_out:
                    outcome = self.run(RemoveMessages(positions=going))
                    self.plans[at] = outcome
            else:
                for partition, key, value, event_time in step:
                    time, event = Instant(self.at_s * SECOND), Instant(event_time)
                    message = NewMessage(append_time=time, event_time=event, key=key, value=value, partition=partition)
                    self.world.writer.append(NAME, [message], policy_of(self.world.services, NAME))
                    there.append((partition, ends[partition]))
                    ends[partition] += 1

    def run(self, work: RemoveMessages | UndoPlan | str) -> str:
        self.at_s += 1
        outcome = run(self.world, NAME, self.at_s, "compaction" if isinstance(work, str) else work)
        assert outcome.name in ("published", "no_op"), outcome.detail
        return outcome.plan_id or ""

    def log(self) -> list[Message]:
        return list(self.world.services.reader.messages(NAME))

    def view(self) -> list[ViewRow]:
        views = self.world.services.stores.view
        state = views.view(NAME)
        return [] if state is None else list(views.view_rows(NAME, state))

    def shown(self) -> list[Message]:
        return list(read_compacted(self.world.services, NAME))


@generated
@effort("memory", 25)
@given(steps=STEPS, own=POLICIES, data=st.data())
def test_what_is_undone_is_as_if_it_had_never_been(steps: list[Step], own: dict[str, Value], data: st.DataObject) -> None:
    # Without keys nothing can be compacted.
    steps = [[(partition, b"a", b"v", 3) for partition in range(PARTITIONS)], None, *steps]
    taken = History(steps, own)
    order = data.draw(st.permutations(sorted(taken.plans)))
    undone = set[int]()
    for at in order[: data.draw(st.integers(0, len(order)))]:
        with suppressed("LaterPlan"):
            taken.run(UndoPlan(plan_id=taken.plans[at]))
            undone.add(at)
    never = History(steps, own, frozenset(undone))
    never.at_s = taken.at_s  # a compaction takes tombstones by its time
    for _ in range(2):
        assert taken.log() == never.log()
        assert [row.message for row in taken.view()] == [row.message for row in never.view()]
        assert taken.shown() == never.shown()
        taken.run("compaction")
        never.run("compaction")


def test_a_newer_message_that_does_not_come_back_hides_what_the_view_had_all_the_same() -> None:  # P3
    """One that was erased since, say: a compaction has passed over its place, and what is older of its key stays away."""
    history = History([[(0, b"a", b"v", 0)], None, [(0, b"a", b"v", 0)], frozenset({0, 1}), None], {})
    ledger = history.world.services.ledger
    taken = ledger.record(history.plans[3]).plan
    later = [record.plan for record in ledger.published_after(NAME, taken.plan_id, "compaction")]
    assert taken.view_removal.mark and later
    with raises("LaterPlan", match=later[0].plan_id[:12]):
        undo.check_later(taken, Returning(source_id=1), later, policy_of(history.world.services, NAME))
