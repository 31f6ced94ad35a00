"""A key is known by its keyed hash alone, and is never compared with another secret's."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.erasure import MOST_KEYS, TABLE_KINDS, KeyMatch, KeySecret
from message_lifecycle.stores.iceberg.key_mask import key_mask
from message_lifecycle.stores.iceberg.layout import KINDS
from tests.errors import raises

SECRET = KeySecret(b"0123456789abcdef0123456789abcdef")
OTHER = KeySecret(b"another-another-another-another-")


def test_a_digest_is_hmac_sha256_so_that_anybody_with_the_secret_can_check_it() -> None:
    found = SECRET.digests([b"k"])
    assert found.secret == SECRET.fingerprint
    assert [one.digest for one in found.each] == [hmac.new(SECRET.value, b"k", hashlib.sha256).hexdigest()]


def test_a_key_that_is_given_twice_counts_once_and_the_given_order_is_kept_nowhere() -> None:
    assert SECRET.digests([b"b", b"a", b"b"]) == SECRET.digests([b"a", b"b"])
    assert len(SECRET.digests([b"b", b"a", b"b"])) == 2


def test_a_request_names_a_limited_number_of_keys() -> None:
    keys = [b"%d" % number for number in range(MOST_KEYS)]
    assert len(SECRET.digests(keys * 2)) == MOST_KEYS
    with raises("TooManyKeys", match=r"names 1,001 keys\. Allowed: up to 1,000 keys"):
        SECRET.digests([*keys, b"one more"])


def test_a_mark_is_short_and_needs_the_secret() -> None:
    assert SECRET.mark(b"k") == hashlib.md5(SECRET.salt + b"k").hexdigest()[:3]
    assert OTHER.salt != SECRET.salt
    assert SECRET.value not in SECRET.salt


def test_another_secret_is_named_and_never_compared() -> None:
    with raises("ErasureSecretChanged", match=f"the fingerprint {OTHER.fingerprint}, .* needs {SECRET.fingerprint}\\."):
        KeyMatch.for_requests(OTHER, [SECRET.digests([b"k"])])
    assert OTHER.fingerprint != SECRET.fingerprint


def test_a_short_secret_is_refused() -> None:
    with raises("InvalidErasureSecret"):
        KeySecret(b"short")


def test_neither_secret_nor_key_is_printed() -> None:
    match = KeyMatch.for_requests(SECRET, [SECRET.digests([b"customer-17"])])
    assert "0123456789abcdef" not in repr(match) + repr(SECRET)
    assert "customer-17" not in repr(match)


def test_an_empty_key_is_a_key_and_a_null_key_is_none() -> None:
    match = KeyMatch.for_requests(SECRET, [SECRET.digests([b""])])
    assert match(b"")
    assert not match(None)
    assert not match(b"a")
    assert not KeyMatch.for_requests(SECRET, [])


@settings(deadline=None)  # the first call waits for Arrow's own start
@given(st.lists(st.none() | st.binary(max_size=3)), st.sets(st.binary(max_size=3), max_size=4))
def test_a_column_matches_as_single_keys_do(keys: list[bytes | None], wanted: set[bytes]) -> None:
    match = pickle.loads(pickle.dumps(KeyMatch.for_requests(SECRET, [SECRET.digests(wanted)])))
    expected = [match(key) for key in keys]
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array(keys, type=kind)
        assert key_mask(column, match).to_pylist() == expected
        assert key_mask(column.dictionary_encode(), match).to_pylist() == expected
        assert key_mask(pa.chunked_array([column, column]), match).to_pylist() == expected * 2


def test_few_keys_of_a_column_are_compared_by_their_keyed_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    match, hashed = KeyMatch.for_requests(SECRET, [SECRET.digests([b"777"])]), list[bytes]()
    by_secret = KeySecret.hash

    def counted(secret: KeySecret, key: bytes) -> bytes:
        hashed.append(key)
        return by_secret(secret, key)

    monkeypatch.setattr(KeySecret, "hash", counted)
    found = key_mask(pa.array([b"%d" % number for number in range(20_000)]), match)
    assert found.to_pylist() == [number == 777 for number in range(20_000)]
    assert len(hashed) <= 20


def test_each_thread_finds_its_own_key() -> None:
    def found(number: int) -> list[bool]:
        match = KeyMatch.for_requests(SECRET, [SECRET.digests([b"%d" % number])])
        return key_mask(pa.array([b"%d" % near for near in range(number - 50, number + 50)]), match).to_pylist()

    numbers = range(1_000, 1_200)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(found, numbers)) == [[at == 50 for at in range(100)]] * len(numbers)


def test_a_key_of_text_is_its_utf_8() -> None:
    match = KeyMatch.for_requests(SECRET, [SECRET.digests(["ä".encode()])])
    assert key_mask(pa.array(["ä", "a", None]), match).to_pylist() == [True, False, False]


def test_a_kind_of_table_has_the_name_that_the_catalog_gives_it() -> None:
    assert [traits.beside for traits in TABLE_KINDS.values() if not traits.by_setting] == list(KINDS)
