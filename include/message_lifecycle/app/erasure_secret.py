"""The place of the secret for keyed hashes, and the match that finds a request's keys with it.

On one machine, the secret is a file in the state folder (LIFECYCLE_HOME), and is created at its first use. On a cluster, it is the file
that LIFECYCLE_ERASURE_SECRET_FILE names. Every process that ingests, copies or erases needs the same file, and no code here creates it.
Anyone with both the secret and the ledger can try keys against the digests, so keep the two, and their backups, apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.app.private_files import secret
from message_lifecycle.model.erasure import ErasureRequest, KeyMatch, KeySecret
from message_lifecycle.model.errors import erasure_secret_missing
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.ledger import Ledger

SECRET_FILE = "LIFECYCLE_ERASURE_SECRET_FILE"
"""Names the file; the file itself holds 32 random bytes or more, as one line of text."""
STATE_FOLDER = "LIFECYCLE_HOME"
IN_STATE_FOLDER = Path("secrets", "erasure")


def configured_secret(make: bool) -> KeySecret:
    """Return the configured secret.

    Args:
        make: Create a secret in the state folder if it has none.

    Raises:
        ErasureSecretMissing, InvalidErasureSecret: There is no usable secret.
    """
    named = os.environ.get(SECRET_FILE)
    if named:
        return _read(Path(named).expanduser())
    home = os.environ.get(STATE_FOLDER)
    if not home:
        raise erasure_secret_missing(SECRET_FILE, "it is not set")
    file = Path(home).expanduser().absolute() / IN_STATE_FOLDER
    if make and file.parent.is_dir():
        secret(file)
    return _read(file)


def _read(file: Path) -> KeySecret:
    try:
        return KeySecret(file.read_bytes().strip())
    except OSError as error:
        raise erasure_secret_missing(str(file), (error.strerror or type(error).__name__).lower()) from None


def secret_for_request(s: Services) -> KeySecret:
    """Return the secret for a new request. Create one only if no recorded digest must still be compared.

    Raises:
        ErasureSecretMissing, ErasureSecretChanged: With another secret, forbidden keys would come in again.
    """
    needed = [request.keys for request in s.ledger.erasures() if needs_secret(request)]
    secret = s.key_secret(not needed)
    KeyMatch.for_requests(secret, needed)
    return secret


def needs_secret(request: ErasureRequest) -> bool:
    """Return whether ingests must compare the request's digests, until a person lifts it.

    A request that only waits for its erasure does not count: with another secret, its erasure is refused by name, and never counts as done.
    """
    return request.forbid and request.state != "refused" and request.lifted is None


def match_of(s: Services, requests: Iterable[ErasureRequest]) -> KeyMatch:
    """Finds the requests' keys again. Raises ErasureSecretMissing, ErasureSecretChanged."""
    return KeyMatch.for_requests(s.key_secret(False), (request.keys for request in requests))


def forbidden_keys(ledger: Ledger, key_secret: Callable[[bool], KeySecret], topic: TopicName) -> KeyMatch | None:
    """Return a match for the keys that the topic must refuse. None if it refuses no key, which is the usual case: no secret is read then."""
    found = ledger.forbidden(topic)
    return KeyMatch.for_requests(key_secret(False), (request.keys for request in found)) if found else None
