"""Requests of erasure as plain values. Of the key there is nothing but its keyed hash."""

from __future__ import annotations

from typing import Any

from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.instants import format_instant


def erasure_view(request: ErasureRequest) -> dict[str, Any]:
    """`topics` empty: all."""
    lifted = request.lifted
    return {
        "request_id": request.request_id,
        "state": request.state,
        "detail": request.detail,
        "topics": [str(topic) for topic in request.topics],
        "forbid": request.forbid,
        "forbids": request.forbid and request.state != "refused" and lifted is None,
        "requested_by": request.requested_by,
        "why": request.why,
        "requested_at": format_instant(request.requested_at),
        "digest": request.key.digest,
        "secret": request.key.secret,
        "lifted": None if lifted is None else {"by": lifted.by, "why": lifted.why, "at": format_instant(lifted.at)},
    }


def erasures_view(s: Services, *, limit: int) -> list[dict[str, Any]]:
    """Newest first."""
    return [erasure_view(request) for request in s.ledger.erasures(limit=limit)]
