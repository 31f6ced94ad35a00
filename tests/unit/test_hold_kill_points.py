"""A legal hold whose placing or release is killed at any step stands or does not, whole, and stands in nobody's way (DEL-4, DEL-8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.errors import HeldByLegalHold
from tests.deleted_topics import topic_in
from tests.effort import sample
from tests.histories import ON_OWN_CATALOG
from tests.past_and_die import dies
from tests.reclaiming import NAME, Past

pytestmark = ON_OWN_CATALOG

STEPS = ["before_write", "written", "before_commit", "after_commit"]


def made(folder: Path) -> tuple[Past, str]:
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    return topic_in(folder, ledger_url=url), url


@pytest.mark.parametrize("step", sample(STEPS, "before_commit", "after_commit"))
def test_a_hold_killed_at_any_step_holds_or_is_not_there(tmp_path: Path, step: str) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, step, "hold")
    standing = past.ledger.holds(NAME)
    assert [(hold.placed_by, hold.why) for hold in standing] == ([("ada", "case 7")] if step == "after_commit" else [])
    if standing:
        with pytest.raises(HeldByLegalHold, match="case 7"):
            past.delete_whole()
    else:
        # The lock that it died with keeps nobody: placed once more, it holds.
        again = place_hold(past.services, NAME, by="ada", why="case 7")
        with pytest.raises(HeldByLegalHold):
            past.delete_whole()
        release_hold(past.services, again.hold_id, by="bob", why="over")
        assert past.delete_whole().name == "published"


@pytest.mark.parametrize("step", sample(STEPS, "before_commit", "after_commit"))
def test_a_release_killed_at_any_step_leaves_the_hold_standing_or_ended(tmp_path: Path, step: str) -> None:
    past, url = made(tmp_path)
    hold = place_hold(past.services, NAME, by="ada", why="case 7", key=b"customer 7")
    dies(tmp_path, url, step, "release", hold.hold_id)
    (kept,) = past.ledger.holds(NAME, released=True)
    assert (kept == hold) is (step != "after_commit"), "not one of its columns has changed, or all that a release changes"
    if kept.is_active:
        with pytest.raises(HeldByLegalHold):
            past.delete_whole()
    ended = release_hold(past.services, hold.hold_id, by="bob", why="case 7 is closed")
    assert (ended.is_active, ended.released_by) == (False, "bob")
    assert past.delete_whole().name == "published"
