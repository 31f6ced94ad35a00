"""A backup is whole, private, and comes back as the same ledger; anything else is refused before it changes something."""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path

import pytest

from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger, restore_ledger, tables
from message_lifecycle.ledger.database import Database
from message_lifecycle.ledger.schema import SCHEMA_VERSION
from message_lifecycle.model.document import Synced
from message_lifecycle.model.erasure import KeyDigest, KeyDigests
from message_lifecycle.model.facts import LogWitness
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import DueState, SourceFile
from tests.errors import raises
from tests.holds import hold_of
from tests.ledgers import AS_OF, OTHER, TOPIC, alter, approval_of, idle_outcome, outcome_of, place, plan_of, report_of, staged_of


def fill(ledger: Ledger) -> None:
    """Something in every table."""
    plan = plan_of(files=tuple(f"ä {n}.parquet" for n in range(3)))
    ledger.add_plan(plan, run="r1")
    ledger.record_staged(staged_of(plan))
    ledger.record_report(staged_of(plan), report_of(plan, asks=True))
    ledger.record_approval(approval_of(plan, text='fine\n"ok" \u2028'))
    ledger.record_outcome(outcome_of(plan))
    ledger.add_plan(plan_of(OTHER))
    ledger.record_run_outcome("r1", idle_outcome(OTHER))
    ledger.commit(TOPIC, "c", 0, 5, Instant(-1))
    ledger.commit(TOPIC, "d", 0, 2**63 - 1, None)
    ledger.register_replica(TOPIC, OTHER, 1)
    ledger.set_accepted(TOPIC, {"message_expiry": 1})
    ledger.set_due_state(TOPIC, DueState(marker="m", policy_hash="p", next_due_at=None, holders=()))
    ledger.set_last_swept_snapshot(TOPIC, 2**62)
    ledger.set_looks("compaction", {TOPIC: True}, as_of=Instant(3))
    ledger.set_undone(TOPIC, "p1", "u1", ((0, 0, 2**62),))
    witness = LogWitness(table_uuid="u", kind="", snapshot_id=2**62, sequence_number=3, offsets={0: 2**62}, state={"key": "value"})
    ledger.record_log_witnesses(TOPIC, [witness], by="ada", text="fine")
    ledger.record_side_tables(TOPIC, {"q": "quarantine"})
    ledger.give_up_table("q", by="ada", text="fine")
    ledger.release_undone("p1", by="ada", text="fine")
    ledger.set_accepted_view(TOPIC, {"retain_null_key": True})
    ledger.set_ingest_setting(TOPIC, "shift_us", 5)
    place(ledger, TOPIC, Synced(document="d", client="c", server_seq=2**62, at=None))
    alter(ledger, users={"ada": {"changes_max_age": "1 month"}}, owners={"d": "ada"})
    ledger.add_hold(hold_of(TOPIC))
    ledger.begin_batch(TOPIC, "b0", [SourceFile(path="refused", size_bytes=1, sha256="x")])
    ledger.finish_batch("b0", snapshot_id=None, rows=0, quarantined=2, refused={"refused": 2})
    ledger.begin_batch(TOPIC, "b1", [SourceFile(path="a", size_bytes=1, sha256="x")])
    ledger.add_erasure(
        "e1", KeyDigests(secret="s", each=(KeyDigest(digest="ab", mark="abc"),)), topics=[TOPIC], forbid=True, requested_by="ada", why="law"
    )
    ledger.allow_keys_again("e1", by="bob", why="mistaken")
    ledger.keep_receipt("e1", lambda _: "{}")
    ledger.accept(OTHER, ("other", 3))
    ledger.next_identity(TOPIC)


def contents(url: str) -> dict[str, list[tuple[object, ...]]]:
    database = Database(url)
    with database.reading() as connection:
        found = {
            table.name: sorted((tuple(row) for row in connection.execute(table.select())), key=repr)
            for table in tables.metadata.sorted_tables
        }
    database.close()
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    return url


@pytest.fixture
def saved(url: str, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl.gz"
    with open_ledger(url, clock=lambda: AS_OF) as ledger:
        fill(ledger)
        ledger.backup(path)
    return path


def test_a_backup_comes_back_as_the_same_ledger(url: str, saved: Path, tmp_path: Path) -> None:
    before = contents(url)
    assert all(before.values()), "every table must be in the test"
    again = f"sqlite:///{tmp_path}/again.db"
    described = restore_ledger(again, saved)
    assert contents(again) == before
    assert described.counts == {name: len(rows) for name, rows in before.items()}
    with open_ledger(again) as ledger, open_ledger(url) as first:
        assert ledger.identity() == first.identity() == (described.heading.uuid, described.heading.sequence)
        assert ledger.record(plan_of(OTHER).plan_id).plan == plan_of(OTHER)
        first.check(TOPIC, found := first.next_identity(TOPIC))
        with raises("LedgerMismatch"):
            ledger.check(TOPIC, found)


def test_only_its_owner_reads_a_backup_and_no_part_is_left(saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert [path.name for path in saved.parent.iterdir() if "gz" in path.name] == [saved.name]


def test_an_empty_ledger_may_be_there_but_none_with_something_in_it(url: str, saved: Path, tmp_path: Path) -> None:
    empty = f"sqlite:///{tmp_path}/empty.db"
    migrate_ledger(empty)
    restore_ledger(empty, saved)
    assert contents(empty) == contents(url)
    with raises("LedgerNotEmpty"):
        restore_ledger(url, saved)
    assert contents(empty) == contents(url)


def unzipped(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def zipped(lines: list[bytes]) -> bytes:
    return gzip.compress(b"".join(lines))


@pytest.mark.parametrize(
    "breaks",
    [
        lambda path: path.read_bytes()[:-40],
        lambda path: path.read_bytes()[: len(path.read_bytes()) // 2],
        lambda path: b"",
        lambda path: b"PK\x03\x04 something else",
        lambda path: gzip.compress(b""),
        lambda path: gzip.compress(b'{"format": "something else"}\n'),
        lambda path: gzip.compress(b"[]\n"),
        lambda path: zipped(unzipped(path)[:-1]),
        lambda path: zipped(unzipped(path)[:1]),
        lambda path: zipped([line.replace(b'"fine', b'"wine') for line in unzipped(path)]),
        lambda path: zipped([line for line in unzipped(path) if b'"c"' not in line]),
        lambda path: zipped([line.replace(b"shop/orders", b"shop/orderz") for line in unzipped(path)]),
        lambda path: zipped([*unzipped(path), b'["shop/more", 1]\n']),
        lambda path: zipped([line.replace(b'"sequence":', b'"sequel":', 1) for line in unzipped(path)]),
        lambda path: zipped([*unzipped(path)[:3], b"[1\n", *unzipped(path)[3:]]),
        lambda path: zipped([unzipped(path)[0], b'["no table yet"]\n', *unzipped(path)[1:]]),
    ],
)
def test_a_broken_backup_changes_nothing(saved: Path, tmp_path: Path, breaks) -> None:
    broken = tmp_path / "broken.gz"
    broken.write_bytes(breaks(saved))
    assert broken.read_bytes() != saved.read_bytes()
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    migrate_ledger(fresh)
    before = contents(fresh)
    with raises("BrokenBackup", match="Nothing was restored"):
        restore_ledger(fresh, broken)
    assert contents(fresh) == before


def test_a_backup_that_is_not_there_is_named(url: str, tmp_path: Path) -> None:
    with raises("BrokenBackup", match="No such file"):
        restore_ledger(url, tmp_path / "none.gz")


def test_a_backup_that_cannot_be_written_leaves_the_one_before(url: str, saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    with open_ledger(url) as ledger:
        with raises("BackupNotWritten"):
            ledger.backup(tmp_path / "no such folder" / "x.gz")
        saved.with_name(saved.name + ".d").mkdir()
        with raises("BackupNotWritten"):
            ledger.backup(saved.with_name(saved.name + ".d"))
    assert saved.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("change", "code"), [(1, "LedgerTooNew"), (-1, "LedgerTooOld")])
def test_a_backup_of_another_version_is_refused(saved: Path, tmp_path: Path, change: int, code: str) -> None:
    lines = unzipped(saved)
    heading = json.loads(lines[0])
    heading["ledger_version"] = SCHEMA_VERSION + change
    other = tmp_path / "other.gz"
    other.write_bytes(zipped([json.dumps(heading).encode() + b"\n", *lines[1:]]))
    with raises(code):
        restore_ledger(f"sqlite:///{tmp_path}/fresh.db", other)
