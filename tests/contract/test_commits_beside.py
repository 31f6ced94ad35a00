"""Every commit that another engine can make to a table beside the log, between each two of our verbs (DEL-4, CMP-4, SNP-6, QUA-1).

The plan is exact, or refused by name, or planned again. No row goes or comes that the plan does not name, and no other topic is troubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import pytest

from message_lifecycle.app import documents, steps
from message_lifecycle.app.due import due
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.layout import COMPACTED, QUARANTINE, SNAPSHOTS
from tests.beside_the_log import SCENES, SECOND, Rows, Scene, counted, never, shown
from tests.commits_of_others import ANOTHER, COMMITS, Other, Row, bring_back, carry_out, named, run_again
from tests.contract.conftest import MakeWorld, on
from tests.effort import sample

KINDS = {
    **dict.fromkeys(("compaction", "purge", "undone purge", "marks of the cleaner", "erasure of a key"), (COMPACTED,)),
    **dict.fromkeys(("document purge", "undone document purge", "erasure of a document"), ("", SNAPSHOTS)),
    **dict.fromkeys(("quarantine age", "undone quarantine age", "erasure of refused rows"), (QUARANTINE,)),
    "reclaim": ("", COMPACTED),
}
"""Tables that the other engine changes."""
WORKS: tuple[Scheduled, ...] = ("message_cleaner", "compaction", "snapshot_with_purge", "quarantine", "reclaim")
GAPS = ("before", "plan", "stage", "gate", "halfway", "publish")
"""The commit of the other engine comes before the plan, after a verb, or after the first commit of the plan."""
PLACES = [(scene, kind) for scene in SCENES for kind in KINDS[scene]]
CASES = [(*place, gap, commit) for place, gap, commit in product(PLACES, GAPS, COMMITS)]
FOUND = [
    ("document purge", SNAPSHOTS, "gate", "create again alike"),
    ("erasure of refused rows", QUARANTINE, "halfway", "create again alike"),
    ("reclaim", COMPACTED, "stage", "rename"),
    ("compaction", COMPACTED, "plan", "rename"),
    ("document purge", SNAPSHOTS, "plan", "rename"),
    ("undone document purge", SNAPSHOTS, "before", "create again alike"),
    ("erasure of a key", COMPACTED, "halfway", "rename"),
]
"""Cases that once hid other topics, ended without a name, or made a table again."""
OTHERS = [commit for commit in COMMITS if commit not in {found for *_, found in FOUND}]
KEPT = [*((*PLACES[at % len(PLACES)], GAPS[(at + at // len(GAPS)) % len(GAPS)], commit) for at, commit in enumerate(OTHERS)), *FOUND]
"""Each commit once, unless a case of it was found."""


def look(scene: Scene) -> None:
    """What all topics are asked: no answer is a fault of the program, and the other topic's is as ever."""
    neighbour = TopicName(stream=scene.name.stream, topic="neighbour")
    found = {entry["topic"]: entry for entry in as_json(status(scene.s, [scene.name, neighbour]))}
    assert found[str(neighbour)]["ok"], found[str(neighbour)]["problems"]
    assert "InternalError" not in str(found), found
    for work in WORKS:
        for one in due(scene.s, [scene.name, neighbour], as_of=scene.now, work=work):
            if one.error is not None:
                assert one.topic == scene.name and named(one.error), one.error


@dataclass(slots=True)
class Meddled:
    """The tables at the other's commit. `before` is empty where that comes before the plan."""

    before: dict[str, list[Row]]
    just_after: dict[str, list[Row]]


def once_in_publish(scene: Scene, do: Callable[[], None]) -> None:
    """Do it after the first commit of the plan."""
    done: list[str] = []

    def step(name: str) -> None:
        if name.startswith("after_") and name not in ("after_stage", "after_delete") and not done:
            done.append(name)
            do()

    for store in (scene.s.stores.log, scene.s.stores.log_return, scene.s.stores.view, scene.s.stores.view_removal,
                  scene.s.stores.view_return, scene.s.stores.snapshots, scene.s.stores.snapshots_return, scene.s.stores.changes,
                  scene.s.stores.changes_return, scene.s.stores.quarantine, scene.s.stores.quarantine_return,
                  scene.s.stores.rewrite, scene.s.stores.forget):  # fmt: skip
        cast(Any, store)._steps = step


def work_with_commit(scene: Scene, kind: str, gap: str, commit: str) -> tuple[Meddled | None, str]:
    """Carry out the work with the other's commit in between. Return the tables at that commit, and how the plan ended."""
    other, met = scene.others[kind], list[Meddled]()

    def meddle() -> None:
        before = scene.rows()
        COMMITS[commit](other)
        met.append(Meddled(before, scene.rows()))
        look(scene)

    if gap == "before":
        meddle()
    try:
        record = steps.plan(scene.s, scene.name, as_of=scene.now, work=scene.work)
    except LifecycleError as error:
        assert gap == "before", error
        return met[0], named(error)
    if record.outcome is not None:
        assert gap == "before", record.outcome
        return met[0], record.outcome.name
    other.plan_id = record.plan.plan_id
    if gap == "halfway":
        once_in_publish(scene, meddle)
    ended = carry_out(scene.s, record, gap, meddle)
    return (met[0] if met else None), ended


def require_named(scene: Scene, was: dict[str, list[Row]], now: dict[str, list[Row]], *, done: bool, planned: dict[str, list[Row]]) -> None:
    """Nothing has gone or come that the work does not name. `done`: the plan was made of `planned`, and is published: it is exact, too."""
    for kind in was.keys() | now.keys():
        before, after = counted(was.get(kind, [])), counted(now.get(kind, []))
        goes, (comes, how_many) = scene.goes.get(kind, never), scene.comes.get(kind, (never, 0))
        gone = [row for row in was.get(kind, []) if shown(row) in before - after]
        new = [row for row in now.get(kind, []) if shown(row) in after - before]
        assert all(map(goes, gone)), f"{kind}: {gone} went"
        assert all(map(comes, new)), f"{kind}: {new} came"
        assert max((after - before).values(), default=1) == 1, f"{kind}: came twice"
        if done and kind in was:
            mine = Rows(shown(row) for row in planned.get(kind, []) if goes(row)) & before
            assert not mine & after, f"{kind}: {mine & after} should have gone"
            assert len(list(filter(comes, now[kind]))) >= how_many, f"{kind}: {now[kind]}"


def require_readable(scene: Scene) -> None:
    """Every snapshot of every table that is there."""
    for kind in scene.rows():
        table = Other(name=scene.name, kind=kind).by_pyiceberg
        for snapshot in table.snapshots():
            table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


def require_no_hole(scene: Scene) -> None:
    """A client that goes on where it was gets each change, or is refused by name (SNP-7)."""
    for document, client, seq in (("a", "ann", 18), ("b", "eve", 0)):
        try:
            pulled = documents.pull(scene.s, scene.name, document, client_seq=seq, client=client)
            first = seq if pulled.snapshot is None else pulled.snapshot.server_seq
            got = [change.server_seq for change in pulled.changes]
            assert got == list(range(first + 1, first + 1 + len(got))), got
        except LifecycleError as error:
            named(error)


@pytest.fixture
def make(make_world: MakeWorld) -> Iterator[Callable[[str], Scene]]:
    def made(scene: str) -> Scene:
        world = make_world({})
        create_topic(world.services, TopicName(stream=f"{world.scratch}.beside", topic="neighbour"), partitions=1, settings={})
        return SCENES[scene](world)

    yield made


@pytest.mark.parametrize("store_kind", on("iceberg")[:1], indirect=True)
@pytest.mark.parametrize(("scene", "kind", "gap", "commit"), sample(CASES, *KEPT))
def test_a_commit_of_another_engine_beside_the_log(make: Callable[[str], Scene], scene: str, kind: str, gap: str, commit: str) -> None:
    topic = make(scene)
    met, ended = work_with_commit(topic, kind, gap, commit)
    assert met is not None, f"no commit of the plan: {ended}"
    in_time = gap in ("plan", "stage", "gate")
    if commit == "rename":
        if in_time and kind in topic.goes.keys() | topic.comes.keys():
            assert ended not in ("published", "no_op"), ended
        bring_back(topic.others[kind])
        met.just_after = {**topic.rows(), kind: met.before[kind]}
    now = topic.rows()
    require_named(topic, met.just_after, now, done=ended == "published" and in_time and commit not in ANOTHER, planned=met.before)
    topic.at(topic.now + SECOND)
    if ended != "published" and commit not in ANOTHER[:2]:
        ended = f"{ended}, {run_again(topic.s, topic.name, topic.work, topic.now)}"
        done = ended.endswith("published") and in_time
        require_named(topic, met.just_after, topic.rows(), done=done, planned=met.just_after)
    if SNAPSHOTS in KINDS[scene]:
        require_no_hole(topic)
    if scene == "reclaim":
        require_readable(topic)
