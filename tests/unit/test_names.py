"""NAME-1, and the catalog identifiers that names become."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.errors import InvalidName
from message_lifecycle.model.names import TopicName, catalog_identifier, normalise_name


@pytest.mark.parametrize(
    ("given_name", "normal"),
    [
        ("  My Topic  ", "my.topic"),
        ("a \t\n b", "a.b"),
        ("A-b_c.D", "a-b_c.d"),
        ("naïve", "naïve"),
        ("हिन्दी", "हिन्दी"),  # with marks, which Python's \w leaves out
        ("a\u200cb", "a\u200cb"),
        ("x" * 255, "x" * 255),
        ("  " + "x" * 255 + "  ", "x" * 255),
        ("...", "..."),
        ("a\u00a0b", "a.b"),
    ],
)
def test_names_are_normalised(given_name: str, normal: str) -> None:
    assert normalise_name(given_name) == normal
    assert normalise_name(normal) == normal


@pytest.mark.parametrize("name", ["", "   ", ".", "..", " . ", "a/b", "a\x00", "x" * 256, "é" * 128, "a:b", "a\x1fb", "½", "😀"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        normalise_name(name)


NAMES = st.text(st.sampled_from("ab_.-é \u0939\u094d09"), min_size=1, max_size=40)


@given(NAMES, NAMES)
def test_identifiers_are_safe_and_tell_names_apart(one: str, other: str) -> None:
    for name in (one, other):
        identifier = catalog_identifier(name)
        assert re.fullmatch(r"[a-z0-9_]+", identifier)
        assert "__" not in identifier
    assert (catalog_identifier(one) == catalog_identifier(other)) is (one == other)


def test_the_longest_names_fit_a_catalog_and_stay_apart() -> None:
    long = [TopicName(stream="s", topic="." * 253 + end) for end in ("ab", "ac")]
    tables = {name.table(kind) for name in long for kind in ("", "quarantine")}
    assert len(tables) == 4
    assert all(len(table) <= 255 for table in tables)


def test_a_topic_that_is_named_like_a_table_of_ours_is_no_clash() -> None:
    assert TopicName(stream="s", topic="x__quarantine").table() != TopicName(stream="s", topic="x").table("quarantine")
