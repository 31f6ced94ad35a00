"""How changes become a state: each fold by itself, and all of them folded at once or with a stored state between (SNP-10, P8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycrdt import Array, Doc, Map, Text

from message_lifecycle.folds import Fold, Replay, find_fold_difference, fold_of
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import InvalidChange

ROOTS = {"text": "Text", "map": "Map", "list": "Array"}


def fold(name: str) -> Fold:
    return fold_of(name, yjs_roots=ROOTS)


def folded(name: str, *changes: object) -> object:
    folding = fold(name).start(None)
    for change in changes:
        folding.apply(json.dumps(change).encode())
    return folding.shown()


def test_an_unknown_fold_is_none() -> None:
    with pytest.raises(ValueError, match="no fold"):
        fold("newest")


@pytest.mark.parametrize("name", ["json_merge_patch", "json_patch", "last_write", "yjs"])
def test_before_the_first_change_the_state_is_null(name: str) -> None:
    assert fold(name).start(None).shown() is None


def test_before_the_first_change_a_text_is_empty() -> None:
    assert fold("text_splice").start(None).shown() == ""


# The table in appendix A of RFC 7396.
MERGES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), MERGES)
def test_merge_patch_as_the_rfc_has_it(target: object, patch: object, result: object) -> None:
    folding = fold("json_merge_patch").start(json.dumps(target).encode())
    folding.apply(json.dumps(patch).encode())
    assert folding.shown() == result


def test_the_last_write_is_the_state() -> None:
    assert folded("last_write", {"a": 1}, [2]) == [2]


def test_splices_count_code_points_and_are_applied_in_order() -> None:
    assert folded("text_splice", [[0, 0, "a\U0001f600b"]], [[2, 1, "c"], [1, 1, ""]]) == "ac"


@pytest.mark.parametrize(
    "splices",
    [{"a": 1}, [[0, 0]], [0, 0, "x"], [[True, 0, "x"]], [[0, 1.0, "x"]], [[0, 0, None]], [[-1, 0, "x"]], [[0, -1, "x"]], [[4, 0, "x"]],
     [[3, 1, "x"]], [[0, 0, "x"], [9, 0, "y"]], None],
)  # fmt: skip
def test_a_splice_that_does_not_fit_is_refused(splices: object) -> None:
    folding = fold("text_splice").start(b'"abc"')
    with pytest.raises(ValueError, match=r"."):
        folding.apply(json.dumps(splices).encode())
    assert folding.shown() == "abc"


@pytest.mark.parametrize("payload", [b"", b"{", b"NaN", b"[1e999]", b"\xff", b'"\\ud800"', b"[" * 100_000, b'{"a":1} 2'])
@pytest.mark.parametrize("name", ["json_merge_patch", "json_patch", "last_write", "text_splice"])
def test_what_is_no_json_is_refused(name: str, payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        fold(name).start(None).apply(payload)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"0" + b"}" * depth


@pytest.mark.parametrize("name", ["json_merge_patch", "last_write"])
def test_what_is_taken_can_be_stored_shown_and_read_again(name: str) -> None:
    folding = fold(name).start(None)
    folding.apply(nested(200))
    assert fold(name).start(folding.stored()).shown() == folding.shown() == json.loads(nested(200))
    for deeper in (201, 500):
        with pytest.raises(ValueError, match="more than 200 deep"):
            fold(name).start(None).apply(nested(deeper))


def test_what_is_shown_stays_as_it_was_while_the_folding_goes_on() -> None:
    folding = fold("json_merge_patch").start(b'{"a":{"b":1}}')
    before = folding.shown()
    folding.apply(b'{"a":{"b":2}}')
    assert before == {"a": {"b": 1}}


@pytest.mark.parametrize(
    "deeper",
    [
        {"op": "add", "path": "/a" * 150, "value": [[]] * 2},
        {"op": "replace", "path": "/a" * 150, "value": {"a": []}},
        {"op": "copy", "from": "/b", "path": "/a" * 150},
        {"op": "move", "from": "/b", "path": "/a" * 150},
    ],
)
def test_a_patch_goes_no_deeper_than_what_can_be_read(deeper: dict[str, Any]) -> None:
    def state(depth: int) -> Any:
        return {**json.loads(nested(150)), "b": json.loads(nested(depth))}

    fits = fold("json_patch").start(json.dumps(state(50)).encode())
    fits.apply(json.dumps([deeper]).encode())
    assert fold("json_patch").start(fits.stored()).shown() == fits.shown()
    too_deep = deeper if "from" in deeper else {**deeper, "value": json.loads(nested(51))}
    with pytest.raises(ValueError, match="more than 200 deep"):
        fold("json_patch").start(json.dumps(state(51)).encode()).apply(json.dumps([too_deep]).encode())


def test_brackets_in_a_text_and_beside_each_other_are_not_depth() -> None:
    folding = fold("text_splice").start(None)
    folding.apply(json.dumps([[0, 0, "[{"]] * 300).encode())
    assert fold("text_splice").start(folding.stored()).shown() == "[{" * 300


@pytest.mark.parametrize(
    "patch", [None, {"op": "add"}, ["x"], [{"op": "remove", "path": "/none"}], [{"op": "test", "path": "/a", "value": True}], [{"op": 5}]]
)
def test_a_patch_that_does_not_apply_is_refused(patch: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        fold("json_patch").start(b'{"a":1}').apply(json.dumps(patch).encode())


def updates(*edits: Callable[[Doc[Any]], None]) -> list[bytes]:
    """What a writer's library sends for each edit."""
    doc: Doc[Any] = Doc()
    sent: list[bytes] = []
    held = doc.observe(lambda event: sent.append(event.update))
    for edit in edits:
        with doc.transaction():
            edit(doc)
    del held
    return sent


def text(doc: Doc[Any]) -> Text:
    return doc.get("text", type=Text)


EDITS = (
    lambda doc: text(doc).insert(0, "hello"),
    lambda doc: text(doc).insert(5, " world"),
    lambda doc: text(doc).__delitem__(slice(0, 6)),
)


def test_a_yjs_document_shows_its_roots_as_json() -> None:
    def fill(doc: Doc[Any]) -> None:
        doc.get("map", type=Map).update({"a": 1, "b": [1.5, None, True]})
        doc.get("list", type=Array).extend([2, {"c": b"\x00"}])

    folding = fold("yjs").start(None)
    for update in updates(*EDITS, fill):
        folding.apply(update)
    assert folding.shown() == {"list": [2, {"c": {"base64": "AA=="}}], "map": {"a": 1, "b": [1.5, None, True]}, "text": "world"}
    assert json.dumps(folding.shown()).count(".") == 1


# Named: an update begins with a client number drawn by chance, and every worker must collect the same tests.
@pytest.mark.parametrize("update", [b"", b"\x00", b"\xff" * 9, updates(EDITS[0])[0][:-1]], ids=["nothing", "half", "noise", "cut"])
def test_what_is_no_update_is_refused(update: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        fold("yjs").start(None).apply(update)


@pytest.mark.parametrize("missing", [0, 1])
def test_an_update_that_builds_on_a_missing_one_is_refused(missing: int) -> None:
    folding = fold("yjs").start(None)
    sent = updates(*EDITS)
    del sent[missing]
    with pytest.raises(ValueError, match="not there"):
        for update in sent:
            folding.apply(update)


def test_a_deletion_of_what_is_not_there_is_refused() -> None:
    # Its deletions are all that such an update has: the library would keep them aside without a word.
    with pytest.raises(ValueError, match="not there"):
        fold("yjs").start(None).apply(updates(*EDITS)[2])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SPLICE = st.tuples(st.integers(0, 12), st.integers(0, 4), st.text(max_size=6)).map(list)
PATCH = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": st.sampled_from(["", "/a", "/b", "/a/0"]), "value": JSON}),
    st.fixed_dictionaries({"op": st.just("remove"), "path": st.sampled_from(["/a", "/b", "/a/0"])}),
    st.fixed_dictionaries({"op": st.sampled_from(["copy", "move"]), "path": st.sampled_from(["/a", "/b"]), "from": st.sampled_from(["/a", "/b"])}),
)  # fmt: skip
CHANGES = {
    "json_merge_patch": JSON,
    "last_write": JSON,
    "json_patch": st.lists(PATCH, max_size=2),
    "text_splice": st.lists(SPLICE, max_size=3),
}


def taken(name: str, payloads: list[bytes]) -> list[bytes]:
    """Those that apply, one after the other: an invalid one leaves a folding of no use."""
    kept: list[bytes] = []
    for payload in payloads:
        folding = fold(name).start(None)
        try:
            for each in (*kept, payload):
                folding.apply(each)
        except ValueError:
            continue
        kept.append(payload)
    return kept


def split_anywhere(name: str, payloads: list[bytes], cuts: set[int]) -> tuple[bytes, bytes]:
    """Folded in one go, and with the state stored and read back before each cut."""
    once = fold(name).start(None)
    part, stored = fold(name).start(None), None
    for at, payload in enumerate(payloads):
        once.apply(payload)
        part = fold(name).start(stored) if at in cuts else part
        part.apply(payload)
        stored = part.stored()
    return once.stored(), stored if stored is not None else once.stored()


@pytest.mark.parametrize("name", CHANGES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stored_state_goes_on_as_if_it_had_never_been_stored(name: str, data: st.DataObject) -> None:
    payloads = taken(name, [json.dumps(change).encode() for change in data.draw(st.lists(CHANGES[name], max_size=6))])
    once, cut = split_anywhere(name, payloads, data.draw(st.sets(st.integers(0, 6))))
    assert once == cut  # canonical: equal states are equal bytes


@settings(max_examples=40, deadline=None)
@given(
    inserts=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.text("abc", min_size=1, max_size=4), st.booleans()), max_size=8),
    cuts=st.sets(st.integers(0, 8)),
)
def test_a_stored_yjs_document_goes_on_as_if_it_had_never_been_stored(inserts: list[tuple[int, int, str, bool]], cuts: set[int]) -> None:
    """Two writers who know each other's updates only now and then."""
    docs: list[Doc[Any]] = [Doc(), Doc()]
    sent: list[bytes] = []
    for who, at, content, meets in inserts:
        before = docs[who].get_state()
        whole = text(docs[who])
        if len(str(whole)) > at and meets:
            del whole[at : at + 1]
        else:
            whole.insert(0, content)
        sent.append(docs[who].get_update(before))
        if meets:
            docs[1 - who].apply_update(docs[who].get_update())
    once, cut = split_anywhere("yjs", sent, cuts)
    if sent:
        assert fold("yjs").start(once).same_as(cut)
        assert fold("yjs").start(cut).same_as(once)
        whole = fold("yjs").start(None)
        for update in sent:
            whole.apply(update)
        assert whole.same_as(cut)


def test_two_yjs_documents_are_not_the_same_for_what_no_root_names() -> None:
    """What is shown is the text alone; the rest would be lost, and nobody told."""
    hidden = updates(*EDITS, lambda doc: doc.get("hidden", type=Map).update({"a": 1}))
    whole, part = fold_of("yjs", yjs_roots={"text": "Text"}).start(None), fold_of("yjs", yjs_roots={"text": "Text"}).start(None)
    for update in hidden:
        whole.apply(update)
    for update in hidden[:-1]:
        part.apply(update)
    assert whole.shown() == part.shown()
    assert not whole.same_as(part.stored())
    assert not part.same_as(whole.stored())


def test_a_deletion_alone_makes_another_yjs_document() -> None:
    """Deletions move no writer's clock."""
    before, after = fold("yjs").start(None), fold("yjs").start(None)
    for update in updates(*EDITS):
        after.apply(update)
    for update in (again := updates(*EDITS))[:-1]:
        before.apply(update)
    deleted = fold("yjs").start(before.stored())
    deleted.apply(again[-1])
    assert not before.same_as(deleted.stored())
    assert not deleted.same_as(before.stored())
    assert not after.same_as(deleted.stored()), "the same text by another writer"


def test_a_proof_fails_for_what_a_snapshot_does_not_show() -> None:  # SNP-6
    roots = fold_of("yjs", yjs_roots={"text": "Text"})
    sent = updates(EDITS[0], lambda doc: doc.get("hidden", type=Map).update({"a": 1}))
    changes = [Change(document="a", server_seq=seq, client="x", at=None, payload=update) for seq, update in enumerate(sent, start=1)]
    whole, part = roots.start(None), roots.start(None)
    part.apply(sent[0])
    for update in sent:
        whole.apply(update)
    action = SnapshotDocument(document="a", seq=2, after=0, snapshot=2, epoch=0)
    assert find_fold_difference(action, roots, newest=2, base=None, snapshot=whole.stored(), changes=changes, left=()) is None
    found = find_fold_difference(action, roots, newest=2, base=None, snapshot=part.stored(), changes=changes, left=())
    assert found == "the changes up to server_seq 2 do not give its snapshot"


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_is_the_same_however_it_is_written(name: str) -> None:
    state = '"ab"' if name == "text_splice" else '{"a":1,"b":[2]}'
    folding = fold(name).start(state.encode())
    assert folding.same_as(state.encode())
    assert folding.same_as(f" {state}".replace("a", "\\u0061").encode())
    assert not folding.same_as(state.replace("b", "c").encode())
    assert not folding.same_as(b"no state")
    assert not fold("yjs").start(updates(EDITS[0])[0]).same_as(b"no state")


def test_a_replay_takes_nothing_but_the_next_change() -> None:
    replay = Replay(fold("last_write"), "a", after=3, stored=b"0")
    replay.apply_change(4, b"1")
    for seq in (4, 6):
        with pytest.raises(InvalidChange, match="does not follow 4"):
            replay.apply_change(seq, b"2")
    with pytest.raises(InvalidChange, match="server_seq 5"):
        replay.apply_change(5, b"x")
    with pytest.raises(InvalidChange, match="cannot be read"):
        Replay(fold("last_write"), "a", after=3, stored=b"x")
