"""Each file is ingested exactly once, whatever cuts the ingest off."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from message_lifecycle.ledger import Ledger, open_ledger
from message_lifecycle.model.outcome import Batch, SourceFile
from tests.errors import raises
from tests.ledgers import AS_OF, OTHER, TOPIC


def file(path: str, content: str = "x") -> SourceFile:
    return SourceFile(path=path, size_bytes=len(content), sha256=content)


A, B, C = file("a.jsonl"), file("b.jsonl"), file("sub/a.jsonl")


def finish(ledger: Ledger, batch_id: str) -> None:
    ledger.finish_batch(batch_id, snapshot_id=1, rows=10, quarantined=0)


def test_a_done_file_is_not_taken_again(ledger: Ledger) -> None:
    assert list(ledger.begin_batch(TOPIC, "1", [B, A])) == [A, B]
    finish(ledger, "1")
    assert list(ledger.begin_batch(TOPIC, "2", [A, B, C])) == [C]
    finish(ledger, "2")
    assert list(ledger.begin_batch(TOPIC, "3", [A, B, C])) == []
    assert ledger.open_batches(TOPIC) == []
    assert list(ledger.begin_batch(OTHER, "4", [A])) == [A]


def test_a_topic_that_is_made_anew_takes_files_that_the_old_one_had(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A])
    finish(ledger, "1")
    ledger.begin_batch(OTHER, "2", [A])
    finish(ledger, "2")
    ledger.set_ingest_setting(TOPIC, "shift_days", 3)
    ledger.reset_topic(TOPIC)
    assert list(ledger.begin_batch(TOPIC, "3", [A])) == [], "until it is there, the old one may come back"
    ledger.forget_former(TOPIC)
    assert (list(ledger.begin_batch(TOPIC, "1", [A])), dict(ledger.ingest_settings(TOPIC))) == ([A], {})
    assert list(ledger.begin_batch(OTHER, "4", [A])) == []


def test_an_open_batch_is_told_with_its_files_and_lets_no_other_begin(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [B, A])
    with raises("OpenBatch", match="an unfinished batch, 1, since"):
        ledger.begin_batch(TOPIC, "2", [C])
    assert ledger.open_batches(TOPIC) == [Batch(batch_id="1", topic=TOPIC, begun_at=AS_OF, files=(A, B))]
    assert list(ledger.begin_batch(TOPIC, "1", [A, B, C])) == [A, B]


def test_an_abandoned_batch_gives_its_files_back(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A, B])
    ledger.abandon_batch("1")
    ledger.abandon_batch("1")
    assert ledger.open_batches(TOPIC) == []
    assert list(ledger.begin_batch(TOPIC, "2", [A])) == [A]
    finish(ledger, "2")
    assert list(ledger.begin_batch(TOPIC, "1", [A, B])) == [B]  # the same name may begin again
    assert [batch.files for batch in ledger.open_batches(TOPIC)] == [(B,)]


def test_a_file_with_other_content_is_an_error_that_names_it(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A])
    finish(ledger, "1")
    with raises("ChangedFile", match=rf"^'{A.path}' changed after its ingest .* \(batch 1\)"):
        ledger.begin_batch(TOPIC, "2", [B, file(A.path, "longer")])
    assert ledger.open_batches(TOPIC) == []
    assert list(ledger.begin_batch(TOPIC, "2", [B])) == [B]


def test_files_with_other_content_are_told_apart_before_a_batch_begins(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A, B])
    longer = file(A.path, "longer")
    assert list(ledger.changed_files(TOPIC, [C, longer, B])) == [longer]
    assert list(ledger.changed_files(OTHER, [longer])) == []


def test_the_same_content_under_another_name_is_another_file(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A])
    finish(ledger, "1")
    assert list(ledger.begin_batch(TOPIC, "2", [file("copy.jsonl", "x")])) == [file("copy.jsonl", "x")]


def test_a_batch_ends_once(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A])
    finish(ledger, "1")
    finish(ledger, "1")
    with raises("BatchNotOpen"):
        ledger.abandon_batch("1")
    with raises("BatchNotOpen"):
        ledger.begin_batch(TOPIC, "1", [B])
    assert list(ledger.begin_batch(TOPIC, "1", [A])) == []
    ledger.begin_batch(TOPIC, "2", [B])
    ledger.abandon_batch("2")
    with raises("BatchNotOpen"):
        finish(ledger, "2")
    for write in (lambda: finish(ledger, "9"), lambda: ledger.abandon_batch("9")):
        with raises("UnknownBatch"):
            write()


def test_a_file_named_twice_is_an_error(ledger: Ledger) -> None:
    with raises("RepeatedFile"):
        ledger.begin_batch(TOPIC, "1", [A, B, A])
    assert ledger.open_batches(TOPIC) == []


def test_many_files(ledger: Ledger) -> None:
    files = [file(f"{n:06}.jsonl") for n in range(12_000)]
    assert list(ledger.begin_batch(TOPIC, "1", files[:11_000])) == files[:11_000]
    finish(ledger, "1")
    assert list(ledger.begin_batch(TOPIC, "2", files)) == files[11_000:]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.sampled_from(["done", "abandoned", "cut off"])), max_size=6))
def test_every_file_is_taken_once_however_ingests_end(ingests: Sequence[tuple[set[str], str]]) -> None:
    with open_ledger("sqlite://") as ledger:
        stored: list[str] = []
        for number, (names, end) in enumerate(ingests):
            for left in ledger.open_batches(TOPIC):
                ledger.abandon_batch(left.batch_id)
            taken = [f.path for f in ledger.begin_batch(TOPIC, str(number), [file(name) for name in names])]
            if taken and end == "done":
                finish(ledger, str(number))
                stored += taken
            elif taken and end == "abandoned":
                ledger.abandon_batch(str(number))
        assert len(stored) == len(set(stored))
        assert set(stored) == {name for names, end in ingests if end == "done" for name in names}


def refuse(ledger: Ledger, batch_id: str, *, rows: int = 0, **refused: int) -> None:
    files = {f"{name}.jsonl": count for name, count in refused.items()}
    ledger.finish_batch(batch_id, snapshot_id=None, rows=rows, quarantined=sum(refused.values()), refused=files)


def test_a_file_that_was_refused_whole_comes_in_again_when_it_is_mended_and_not_before(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A, B])
    refuse(ledger, "1", rows=1, a=10)
    assert list(ledger.begin_batch(TOPIC, "2", [A, B])) == []
    assert ledger.find_refused_files(TOPIC, [A, B]) == {"a.jsonl"}
    mended = file(A.path, "mended")
    assert list(ledger.changed_files(TOPIC, [mended, B])) == []
    assert ledger.find_refused_files(TOPIC, [mended, B]) == frozenset()
    assert [one.needs_a_person for one in ledger.refused_batches(TOPIC)] == [True]
    assert list(ledger.begin_batch(TOPIC, "2", [mended, B])) == [mended]
    ledger.abandon_batch("2")
    assert [one.unsettled for one in ledger.refused_batches(TOPIC)] == [10], "a batch that came to nothing mends nothing"
    ledger.begin_batch(TOPIC, "3", [mended])
    finish(ledger, "3")
    assert [(one.batch_id, one.rows, one.refused, one.unsettled) for one in ledger.refused_batches(TOPIC)] == [("1", 1, 10, 0)]
    with raises("ChangedFile"):
        ledger.begin_batch(TOPIC, "4", [A])
    assert ledger.refused_batches(OTHER) == []


def test_a_file_that_is_mended_and_refused_again_can_be_mended_again(ledger: Ledger) -> None:
    for number, content in enumerate(("x", "longer", "longest")):
        assert list(ledger.begin_batch(TOPIC, str(number), [file(A.path, content)])) == [file(A.path, content)]
        refuse(ledger, str(number), a=2)
        assert list(ledger.begin_batch(TOPIC, "again", [file(A.path, content)])) == []
    ledger.begin_batch(TOPIC, "last", [file(A.path, "good")])
    finish(ledger, "last")
    assert [one.unsettled for one in ledger.refused_batches(TOPIC)] == [0, 0, 0]


def test_a_batch_needs_a_person_where_more_than_half_of_it_was_refused_until_somebody_settles_it(ledger: Ledger) -> None:  # OBL-1
    for batch_id, rows, refused, needed in (("1", 0, 1, True), ("2", 5, 5, False), ("3", 5, 6, True), ("4", 5, 0, False)):
        ledger.begin_batch(TOPIC, batch_id, [file(batch_id)])
        ledger.finish_batch(batch_id, snapshot_id=None, rows=rows, quarantined=refused)
        if refused:
            assert ledger.refused_batches(TOPIC)[-1].needs_a_person is needed
    assert [one.batch_id for one in ledger.refused_batches(TOPIC)] == ["1", "2", "3"]
    settled = ledger.settle_batch(TOPIC, "1", "accepted", by="ann", why="test data")
    assert (settled.unsettled, settled.settled_as, settled.settled_by, settled.settled_why) == (0, "accepted", "ann", "test data")
    assert ledger.settle_batch(TOPIC, "1", "replayed", by="bob", why=None) == settled, "the first word stands"
    assert [one.needs_a_person for one in ledger.refused_batches(TOPIC)] == [False, False, True]
    for topic, batch_id in ((TOPIC, "4"), (TOPIC, "none"), (OTHER, "3")):
        with raises("UnknownBatch"):
            ledger.settle_batch(topic, batch_id, "accepted", by="ann", why="x")


def test_a_file_whose_rows_were_replayed_cannot_bring_them_once_more(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A, B])
    refuse(ledger, "1", rows=1, a=2)
    assert dict(ledger.find_batches_of_files(TOPIC, [A.path, B.path, C.path])) == {B.path: "1"}
    ledger.settle_batch(TOPIC, "1", "replayed", by="ann", why="x")
    mended = file(A.path, "mended")
    with raises("ChangedFile", match=r"a\.jsonl"):
        ledger.begin_batch(TOPIC, "2", [mended])
    assert list(ledger.changed_files(TOPIC, [mended, B])) == [mended]
    assert list(ledger.begin_batch(TOPIC, "2", [A, B])) == []


def test_a_topic_that_is_made_anew_takes_files_that_the_old_one_refused(ledger: Ledger) -> None:
    ledger.begin_batch(TOPIC, "1", [A])
    refuse(ledger, "1", a=1)
    ledger.reset_topic(TOPIC)
    ledger.forget_former(TOPIC)
    assert (ledger.find_refused_files(TOPIC, [A]), ledger.refused_batches(TOPIC)) == (frozenset(), [])
