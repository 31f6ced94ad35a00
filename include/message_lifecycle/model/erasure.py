"""Erasure of a key everywhere: the request, which knows the key by a keyed hash alone, and what finds the key again by it.

A plain hash of a key would not do: keys are often numbers or addresses, and whoever has the hashes of all of them has the key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from message_lifecycle.model.errors import ErasureSecretChanged, InvalidErasureSecret
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

MIN_SECRET_BYTES = 32
_MARK = b"message_lifecycle erasure secret\x00"

ErasureState = Literal["requested", "erased", "refused"]
"""`requested`: to be carried out, or on the way. `refused`: by a hold or a person; nothing of it went, and it forbids nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDigest:
    """A key's keyed hash (HMAC-SHA256, hex), and the fingerprint of the secret that it was made with."""

    digest: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOf:
    """What an erasure was asked for: the ledger's request, and the key's keyed hash with the fingerprint of its secret. Never the key."""

    request_id: str
    digest: str
    secret: str


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What keyed hashes are made with. Raises InvalidErasureSecret where it is too short to keep a key hidden."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < MIN_SECRET_BYTES:
            raise InvalidErasureSecret(len(self.value), MIN_SECRET_BYTES)

    @property
    def fingerprint(self) -> str:
        """Tells one secret from another and says nothing about either: they are random."""
        return hashlib.sha256(_MARK + self.value).hexdigest()[:16]

    def digest(self, key: bytes) -> KeyDigest:
        return KeyDigest(digest=self.hash(key).hex(), secret=self.fingerprint)

    def hash(self, key: bytes) -> bytes:
        return hmac.digest(self.value, key, "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """Tells whether a key is one of those that digests were made of. May travel to a worker; prints neither secret nor key."""

    secret: KeySecret
    digests: frozenset[bytes]

    @classmethod
    def of(cls, secret: KeySecret, digests: Iterable[KeyDigest]) -> KeyMatch:
        """Raises ErasureSecretChanged where a digest was made with another secret: it would silently match nothing."""
        found = tuple(digests)
        for one in found:
            if one.secret != secret.fingerprint:
                raise ErasureSecretChanged(found=secret.fingerprint, needed=one.secret)
        return cls(secret=secret, digests=frozenset(bytes.fromhex(one.digest) for one in found))

    def matches(self, key: bytes | None) -> bool:
        """A null key is no key and never matches."""
        return key is not None and bool(self.digests) and self.secret.hash(key) in self.digests

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self.digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A person's word that a forbidden key may come in again."""

    by: str
    why: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """A person's request that a key be gone everywhere. `topics` empty: all. `forbid`: what comes in with the key is not taken.

    `detail`: why it was refused, or what is missing yet."""

    request_id: str
    key: KeyDigest
    topics: tuple[TopicName, ...]
    forbid: bool
    requested_by: str
    why: str
    requested_at: Instant
    state: ErasureState = "requested"
    detail: str = ""
    lifted: Lifted | None = None

    def covers(self, topic: TopicName) -> bool:
        return not self.topics or topic in self.topics

    def forbids(self, topic: TopicName) -> bool:
        """From the request on, so that nothing comes in between the search and the deed."""
        return self.forbid and self.state != "refused" and self.lifted is None and self.covers(topic)
