"""What nobody should have asked of tables, or put beside them, by undo, reclaim, erasure and deletion: a named error, and nothing changed (ERR-1, NUM-1, DEL-7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import carry_out
from message_lifecycle.app.operations.registry import Work, preview, undoable_operations
from message_lifecycle.model.errors import ForeignTable, InvalidSetting, UnsafePath
from message_lifecycle.model.request import DeleteTopic, ReclaimDeleted, UndoPlan
from message_lifecycle.model.setting_list import PROPERTY_PREFIX
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.layout import COMPACTED, STREAM_PROPERTY
from tests.deleted_topics import topic_in
from tests.effort import sample
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG, folder_of, set_properties
from tests.reclaiming import NAME, NOW, Past, past_in

pytestmark = ON_OWN_CATALOG

Ask = Callable[[Past], object]


def asking(work: Work) -> Ask:
    return lambda past: preview(past.services, NAME, as_of=NOW, work=work)


def undoing(past: Past) -> object:
    """Of a plan that the ledger knows."""
    return preview(past.services, NAME, as_of=NOW, work=UndoPlan(plan_id=past.ledger.plans(NAME)[0].plan_id))


def erasing(past: Past) -> object:
    return IcebergEraser(past.tables, undoable=undoable_operations).find_key(
        NAME, lambda _key: True, resolve(topic={}, server={}), as_of=NOW
    )


@pytest.fixture
def past(tmp_path: Path) -> Past:
    made = topic_in(tmp_path)
    steps.plan(made.services, NAME, as_of=NOW, work="reclaim")
    return made


RECLAIM, DELETE = asking("reclaim"), asking(DeleteTopic())


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (asking(UndoPlan(plan_id="feed")), "UnknownPlan"),
        (asking(ReclaimDeleted(plan_id="feed")), "UnknownPlan"),
        (lambda past: steps.publish(past.services, "feed"), "UnknownPlan"),
        (lambda past: carry_out(past.services, "feed"), "UnknownErasure"),
    ],
    ids=["undo", "reclaim of a deleted topic", "publish", "erase"],
)
def test_what_nobody_planned_is_unknown(past: Past, ask: Ask, error: str) -> None:
    before = past.files()
    with raises(error, match="feed"):
        ask(past)
    assert past.files() == before


@pytest.mark.parametrize(
    ("ask", "kind"),
    [(ask, kind) for ask in (RECLAIM, DELETE, erasing) for kind in ("", COMPACTED)] + [(undoing, "")],
)
def test_a_table_that_is_not_ours_is_foreign(past: Past, ask: Ask, kind: str) -> None:
    """Another one of the name, or one whose properties somebody took away."""
    set_properties((NAME.namespace, NAME.table(kind)), {STREAM_PROPERTY: None})
    before = past.files(kind)
    with pytest.raises(ForeignTable, match=str(NAME)):
        ask(past)
    assert past.files(kind) == before


@pytest.mark.parametrize("ask", [undoing, RECLAIM, DELETE], ids=["undo", "reclaim", "delete"])
@pytest.mark.parametrize("window", sample(("0", "-1", "nan", "1.5"), "0", "nan"))
def test_a_window_of_no_time_that_was_written_by_hand_is_named(past: Past, ask: Ask, window: str) -> None:
    set_properties((NAME.namespace, NAME.table()), {f"{PROPERTY_PREFIX}undo_window": window})
    with pytest.raises(InvalidSetting, match="undo_window"):
        ask(past)


@pytest.mark.parametrize("to", ["file", "folder"])
def test_an_erasure_follows_no_link_among_the_files(tmp_path: Path, to: str) -> None:
    past = past_in(tmp_path)
    location = folder_of(past.table())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_bytes(b"not ours")
    (location / "link").symlink_to(elsewhere / "f" if to == "file" else elsewhere)
    with pytest.raises(UnsafePath, match="symbolic link"):
        erasing(past)
    assert (elsewhere / "f").read_bytes() == b"not ours"
