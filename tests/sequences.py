"""Generated work on one topic, step by step: what is common to a log and to documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, settle_latest
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.model.setting_list import Value
from tests.logs import SECOND
from tests.undone import approved

_OF_FILES: tuple[Work, ...] = ("message_cleaner", "retention", "reclaim")
"""They may publish what is about files alone, such as those of a segment whose messages have all gone one by one."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One store's way through the steps, at whole seconds. `look`: returns everything that a person sees of the topic."""

    world: World
    name: TopicName
    look: Callable[[Run], object]
    now_s: int = 100
    plans: list[str] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)

    @property
    def now(self) -> Instant:
        return Instant(self.now_s * SECOND)

    def carry_out(self, work: Work, after_s: int) -> object:
        """Return the outcome for messages, markers and documents. Numbers of files and bytes differ by store, so they are left out."""
        self.now_s += after_s
        self.world.set_now(self.now)
        outcome = steps.run(self.world.services, self.name, as_of=self.now, approver=approved, work=work)
        if isinstance(work, EraseKey):
            settle_latest(self.world.services, self.world.services.ledger.erasure(work.request_id))
        assert outcome.name in ("published", "no_op"), outcome.detail
        if work in _OF_FILES and not (outcome.removed or outcome.markers):
            return "no_op"
        if outcome.name == "published" and outcome.plan_id is not None:
            self.plans.append(outcome.plan_id)
        return outcome.name, dict(outcome.removed), outcome.markers, outcome.cancelled_markers, outcome.restored, outcome.more

    def step(self, step: Step) -> object:
        """Return the step's answer, or the code of its error, and the topic's contents after the step."""
        try:
            answer = step.do(self)
        except LifecycleError as error:
            answer = error.code
        return answer, self.look(self)


@dataclass(frozen=True, slots=True)
class Step:
    """`do`: called with the run so far. `says`: the step in words. A failure shows them."""

    says: str
    do: Callable[[Run], object]

    def __repr__(self) -> str:
        return self.says


def begin(world: World, name: TopicName, look: Callable[[Run], object], own: dict[str, Value], *, partitions: int = 1) -> Run:
    create_topic(world.services, name, partitions=partitions, settings={"max_removed_fraction": 1.0, **own})
    run = Run(world=world, name=name, look=look)
    world.set_now(run.now)
    return run


def work_of(work: Work, after_s: int) -> Step:
    return Step(f"{work} after {after_s} s", lambda run: run.carry_out(work, after_s))


def undo(at: int) -> Step:
    def do(run: Run) -> object:
        return run.carry_out(UndoPlan(plan_id=run.plans[-1 - at % len(run.plans)]), 1) if run.plans else None

    return Step(f"undo the plan {at} before the last", do)


def erase(keys: Sequence[bytes]) -> Step:
    def do(run: Run) -> object:
        request = ask(run.world.services, keys, topics=[run.name], forbid=False, by="ada", why="a letter")
        return run.carry_out(EraseKey(request_id=request.request_id), 1)

    return Step(f"erase {keys!r}", do)


def hold(key: bytes) -> Step:
    def do(run: Run) -> object:
        run.holds.append(place_hold(run.world.services, run.name, by="ada", why="case 7", key=key).hold_id)
        return None

    return Step(f"hold {key!r}", do)


def _release(run: Run) -> object:
    if run.holds:
        release_hold(run.world.services, run.holds.pop(0), by="ada", why="over")
    return None


RELEASE = st.just(Step("release the first hold", _release))
UNDO = st.integers(0, 3).map(undo)
