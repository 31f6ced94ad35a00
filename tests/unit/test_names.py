"""NAME-1, the catalog identifiers that names become, and topics named as Pulsar names them (CMP-10)."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from message_lifecycle.model.errors import BadInput, InvalidName
from message_lifecycle.model.names import (
    TopicName,
    TopicUri,
    catalog_identifier,
    name_of_identifier,
    normalise_name,
    safe,
)
from tests.errors import raises


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


@pytest.mark.parametrize("name", ["-", "-x", " -x", "\u200cx", "x\u200d", "\u200d", "a\u200c b", "a\u200c\u200db", "1\u200db", "a\u200d_"])
def test_a_dash_in_front_and_a_joiner_that_joins_nothing_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        normalise_name(name)


@pytest.mark.parametrize("name", ["a\u200cb", "\u0915\u094d\u200d\u0937", "e\u0301\u200cb", "a-", "a.-b", "_-"])
def test_a_joiner_between_letters_with_their_marks_and_a_dash_behind_the_first_are_as_ever(name: str) -> None:
    assert normalise_name(name) == unicodedata.normalize("NFC", name)


TEXTS = st.text(st.characters(categories=("Lu", "Ll", "Lt", "Lo", "Lm", "Nl", "Mn", "Mc", "Nd", "Pc")), min_size=1, max_size=15)


@given(TEXTS, st.sampled_from(["NFC", "NFD"]))
def test_a_name_is_one_in_every_form_of_unicode(text: str, form: str) -> None:
    kept = normalise_name(text)
    again = normalise_name(unicodedata.normalize(form, text))  # type: ignore[arg-type]  # a form, from a list of them
    assert again == normalise_name(kept) == kept


@given(st.text())
def test_nothing_that_is_shown_steers_what_shows_it(text: str) -> None:
    assert safe(text).isprintable()
    assert safe(safe(text)) == safe(text)


# So many letters always fit, though each may take nine: a name that does not has a digest in its place.
NAMES = st.text(st.sampled_from("ab_.-é \u0939\u094d09"), min_size=1, max_size=20)


@given(NAMES, NAMES)
def test_identifiers_are_safe_and_tell_names_apart(one: str, other: str) -> None:
    for name in (one, other):
        identifier = catalog_identifier(name)
        assert re.fullmatch(r"[a-z0-9_]+", identifier)
        assert "__" not in identifier
    assert (catalog_identifier(one) == catalog_identifier(other)) is (one == other)


@given(NAMES)
def test_an_identifier_tells_the_name_again(text: str) -> None:
    assume(text.strip() not in ("", ".", "..") and not text.strip().startswith("-"))
    name = normalise_name(text)
    assert name_of_identifier(catalog_identifier(name)) == name


@pytest.mark.parametrize("identifier", ["a__quarantine", "Upper", "a_2", "_ff", "a_61", "", catalog_identifier("x" * 255)])
def test_what_no_name_is_encoded_as_tells_none(identifier: str) -> None:
    """`a_61` would be `aa`, which is written as it is."""
    assert name_of_identifier(identifier) is None


def test_the_longest_names_fit_a_catalog_and_stay_apart() -> None:
    long = [TopicName(stream="s", topic="." * 253 + end) for end in ("ab", "ac")]
    tables = {name.table(kind) for name in long for kind in ("", "quarantine")}
    assert len(tables) == 4
    assert all(len(table) <= 255 for table in tables)


def test_a_topic_that_is_named_like_a_table_of_ours_is_no_clash() -> None:
    assert TopicName(stream="s", topic="x__quarantine").table() != TopicName(stream="s", topic="x").table("quarantine")


@pytest.mark.parametrize(
    ("text", "name", "partition"),
    [
        ("persistent://shop/eu/orders", "shop.eu/orders", None),
        ("persistent://shop/eu/orders-partition-0", "shop.eu/orders", 0),
        ("persistent://shop/eu/orders-partition-17", "shop.eu/orders", 17),
        ("persistent://shop/eu/orders-partition-2-partition-1", "shop.eu/orders-partition-2", 1),
        ("persistent://shop/eu/orders-partition-01", "shop.eu/orders-partition-01", None),
        ("persistent://shop/eu/orders-partition-", "shop.eu/orders-partition-", None),
        ("persistent://shop/eu.west/orders", "shop.eu.west/orders", None),
        ("persistent://Shop/EU/My Orders", "shop.eu/my.orders", None),
        ("  persistent://shop/eu/orders ", "shop.eu/orders", None),
        ("shop/orders", "shop/orders", None),
        ("orders", "default/orders", None),
        ("shop/orders-partition-3", "shop/orders-partition-3", None),
    ],
)
def test_what_a_name_means(text: str, name: str, partition: int | None) -> None:
    found = TopicUri.parse(text)
    assert (str(found.name), found.partition) == (name, partition)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("non-persistent://shop/eu/orders", "scheme is 'non-persistent'"),
        ("Persistent://shop/eu/orders", "scheme is 'Persistent'"),
        ("://shop/eu/orders", "scheme is ''"),
        ("persistent://orders", "1 part(s)"),
        ("persistent://shop/orders", "2 part(s)"),
        ("persistent://shop/cluster/eu/orders", "4 part(s)"),
        ("persistent://shop.de/eu/orders", "with a dot"),
        ("persistent://my shop/eu/orders", "with a dot"),
    ],
)
def test_what_is_no_topic_says_what_is_one(text: str, why: str) -> None:
    with raises("InvalidTopicUri") as refused:
        TopicUri.parse(text)
    assert why in str(refused.value)
    assert "persistent://TENANT/NAMESPACE/TOPIC" in str(refused.value)
    assert isinstance(refused.value, BadInput)


@pytest.mark.parametrize(
    "text", ["persistent:///eu/orders", "persistent://shop//orders", "persistent://shop/eu/", "persistent://shop/eu/-partition-1", "a/b/c"]
)
def test_a_part_that_is_no_name_is_refused_as_one(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicUri.parse(text)


def test_two_uris_that_differ_name_two_topics() -> None:
    """The place of the dot says where the tenant ends, so `a` and `b.c` are not `a.b` and `c`."""
    assert TopicUri.parse("persistent://a/b.c/t").name.stream == "a.b.c"
    with raises("InvalidTopicUri"):
        TopicUri.parse("persistent://a.b/c/t")
