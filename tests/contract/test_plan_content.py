"""Equal input gives plans of equal content on every store, though no two plans have one id; another deed has another content."""

from __future__ import annotations

from dataclasses import replace

from lifecycle_local.worlds import WORLDS
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.scenario import MakeWorld, World
from message_lifecycle.app.views.plans import plan_view
from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_content import content, content_digest
from message_lifecycle.model.request import EraseKey, PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.model.topic import NO_OPTIONS
from tests.contract.test_requests import append, topic_of
from tests.undone import published, sealed_segments
from tests.undone_documents import made, purged


def _life(world: World) -> list[Plan]:
    """Plans of three topics that meet everything: of messages, of a compacted view, of documents."""
    s = world.services
    name = topic_of(world, message_expiry=100, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    sealed_segments(world, name, 1, 2, 50)
    append(world, name, 60, b"d", b"e", ttl="1s")
    append(world, name, 61, b"a", b"f")
    ids = [published(world, name, 70), published(world, name, 71, PurgeKey(key=b"c"))]
    ids += [published(world, name, 120), published(world, name, 121, UndoPlan(plan_id=ids[-1]))]
    request = ask(s, [b"f"], topics=[name], forbid=False, by="ada", why="a letter")
    ids.append(published(world, name, 130, EraseKey(request_id=request.request_id)))
    ids.append(published(world, name, 140, "topic_delete"))
    view = topic_of(world, cleanup_policy="compact")
    append(world, view, 1, b"a", b"b", b"a", None, b"c")
    ids += [published(world, view, 2, "compaction"), published(world, view, 3, RemoveMessages(positions=((0, 1), (0, 2))))]
    ids += [published(world, view, 4, UndoPlan(plan_id=ids[-1]))]
    ids += purged(made(world))[0]
    return [s.ledger.record(plan_id).plan for plan_id in ids]


def test_it_is_equal_on_every_store(make_world: MakeWorld) -> None:
    other = WORLDS["memory"]({}, NO_OPTIONS)
    plans, expected = _life(make_world({})), _life(other)
    other.close()
    assert [plan.operation for plan in plans] == [plan.operation for plan in expected]
    for plan, wanted in zip(plans, expected, strict=True):
        assert content(plan) == content(wanted)
        assert plan_view(plan).content_digest == content_digest(wanted)
        assert plan.plan_id != wanted.plan_id
    assert len({content_digest(plan) for plan in plans}) == len(plans)


def test_it_tells_what_goes_when_and_why_and_not_in_how_many_files() -> None:
    world = WORLDS["memory"]({}, NO_OPTIONS)
    name = topic_of(world)
    append(world, name, 1, *(b"%d" % key for key in range(9)))
    plan = world.services.ledger.record(published(world, name, 2, RemoveMessages(positions=tuple((0, at) for at in (1, 2, 3, 7))))).plan
    (rows,) = plan.log_commit.mark

    def with_rows(*marked: RemoveRows) -> Plan:
        return replace(plan, changes=(replace(plan.log_commit, mark=marked),))

    same = [
        with_rows(replace(rows, offsets="1-3,7", file="another")),
        with_rows(replace(rows, offsets="7", rows=1, file="b"), replace(rows, offsets="1-2", rows=2), replace(rows, offsets="3", rows=1)),
        replace(plan, requirements=replace(plan.requirements, table_uuid="another", snapshot_id=5)),
    ]
    others = [
        with_rows(replace(rows, offsets="1-3,8")),
        with_rows(replace(rows, partition=1)),
        with_rows(replace(rows, reason="ttl")),
        replace(plan, as_of=Instant(plan.as_of + 1)),
        replace(plan, operation="message_cleaner"),
        replace(plan, policy=(*plan.policy[1:], (plan.policy[0][0], "another"))),
        replace(plan, changes=(replace(plan.log_commit, keep="/archive"),)),
        replace(plan, expected=replace(plan.expected, rows_in=10)),
    ]
    assert {content_digest(one) for one in same} == {content_digest(plan)}
    assert len({content_digest(one) for one in (plan, *others)}) == 1 + len(others)
