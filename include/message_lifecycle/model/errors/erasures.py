"""Requests of erasure, and the secret that keeps their keys hidden. No message holds a key."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class UnknownErasure(BadInput):
    """No request of erasure of that id in the ledger."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"erasure request {request_id!r} is not in the ledger. `lifecycle erase list` shows those that are.")


class AmbiguousErasure(BadInput):
    """The beginning of a request id that more than one request has."""

    def __init__(self, request_id: str, found: tuple[str, ...]) -> None:
        self.request_id, self.found = request_id, found
        super().__init__(f"erasure request {request_id!r} is not one request: {', '.join(found)} begin with it. Give more of the id.")


class NoReceipt(BadInput):
    """The request has not been carried out, or only in part; or there was nothing to erase."""

    def __init__(self, request_id: str, state: str) -> None:
        self.request_id, self.state = request_id, state
        why = f"it is {state}. `lifecycle erase run {request_id}` carries it out"
        if state == "erased":
            why = "the key was found nowhere, so nothing was erased that it could be held to"
        super().__init__(f"erasure request {request_id} has no receipt: {why}.")


class NothingForbidden(Refused):
    """The request forbids no key (any more), so there is nothing to allow."""

    def __init__(self, request_id: str, why: str) -> None:
        self.request_id, self.why = request_id, why
        super().__init__(f"erasure request {request_id} forbids no key: {why}.")


class NothingToErase(Refused):
    """The request was refused; what was asked then is asked again by a new one."""

    def __init__(self, request_id: str, why: str) -> None:
        self.request_id, self.why = request_id, why
        super().__init__(f"erasure request {request_id} was refused: {why}. Nothing went; `lifecycle erase` asks again.")


class UnusableKey(BadInput):
    """What was given as the key cannot be one; says never what it was."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the key cannot be used: {reason}. Allowed: one line of UTF-8 text on standard input, or with --base64 a line of base64."
        )


class UnnamedErasure(BadInput):
    """An erasure names who asks for it, and why."""

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(f"the request names no {missing}. Give who asks by --by, and why by --text.")


class InvalidErasureSecret(BadInput):
    """The secret is so short that a key could be guessed from its digest."""

    def __init__(self, found_bytes: int, least_bytes: int) -> None:
        self.found_bytes, self.least_bytes = found_bytes, least_bytes
        super().__init__(
            f"the erasure secret has {found_bytes} bytes. Allowed: {least_bytes} or more, random ones, in a file that only this user may read."
        )


class ErasureSecretMissing(Refused):
    """The secret that keyed hashes are made with is not there, and a new one would match none of those recorded."""

    def __init__(self, place: str, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(
            f"the erasure secret is not to be had from {place}: {why}. Put the file back from its copy, or name it by "
            "LIFECYCLE_ERASURE_SECRET_FILE. Where it is lost for good, `lifecycle erase allow REQUEST_ID` lifts what the recorded digests "
            "forbid; then a new secret can be made."
        )


class ErasureSecretChanged(Refused):
    """A digest was made with another secret than the one that is there: comparing would find nothing, and say so wrongly."""

    def __init__(self, *, found: str, needed: str) -> None:
        self.found, self.needed = found, needed
        super().__init__(
            f"the erasure secret has the fingerprint {found}; the recorded digest of the key was made with {needed}. Put the right secret "
            "back (LIFECYCLE_ERASURE_SECRET_FILE, embedded: .lifecycle/secrets/erasure). Nothing was compared."
        )
