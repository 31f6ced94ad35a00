"""Seals on gate reports and approvals, which reject a row that a person wrote into the ledger's database by hand (DEL-3).

A seal is a keyed hash over the plan, its stage, and the report or the approval. The key comes from the installation's secret, which is
outside the ledger's database (see `erasure_secret`). Without a secret the seal has no key, and shows damage, but anyone who can write
to the database can compute it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.app.erasure_secret import SECRET_FILE
from message_lifecycle.ledger.codec import to_json
from message_lifecycle.model.errors import LifecycleError, ledger_tampered
from message_lifecycle.model.outcome import Approval, GateReport, PlanRecord, Staged

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_PURPOSE = b"lifecycle seal of the ledger"
_NO_KEY = "none"


def sealed_report(s: Services, record: PlanRecord, staged: Staged, report: GateReport) -> GateReport:
    """Return the report with its seal. Raises ErasureSecretMissing if the configured secret cannot be read."""
    return replace(report, seal=_seal(s, _judgement_fields(record, staged, report), make=True))


def sealed_approval(s: Services, approval: Approval) -> Approval:
    """Return the approval with its seal. Raises ErasureSecretMissing if the configured secret cannot be read."""
    return replace(approval, seal=_seal(s, _approval_fields(approval), make=True))


def broken_seal(s: Services, record: PlanRecord) -> str | None:
    """Return which record of the plan is not as this program wrote it, in words; None if all are."""
    if record.report is not None and record.staged is not None:
        if not _holds(s, record.report.seal, _judgement_fields(record, record.staged, record.report)):
            return "the report of the gate"
    elif record.report is not None:
        return "the report of the gate"
    if record.approval is not None and not _holds(s, record.approval.seal, _approval_fields(record.approval)):
        return "the approval"
    return None


def require_sealed(s: Services, record: PlanRecord) -> None:
    """Raises LedgerTampered."""
    broken = broken_seal(s, record)
    if broken is not None:
        raise ledger_tampered(record.plan.plan_id, broken)


def _judgement_fields(record: PlanRecord, staged: Staged, report: GateReport) -> list[object]:
    text = hashlib.sha256(record.plan.to_json().encode()).hexdigest()
    return ["report", record.plan.plan_id, text, record.requested_by, to_json(staged), to_json(replace(report, seal=None))]


def _approval_fields(approval: Approval) -> list[object]:
    return ["approval", to_json(replace(approval, seal=None))]


def _holds(s: Services, seal: str | None, content: list[object]) -> bool:
    return seal is not None and hmac.compare_digest(seal, _seal(s, content, make=False))


def _seal(s: Services, content: list[object], *, make: bool) -> str:
    text = json.dumps(content, separators=(",", ":")).encode()
    try:
        secret = s.key_secret(make)
    except LifecycleError as missing:
        # A secret that is named must be readable; else this process would write seals that no other one believes.
        if missing.code != "ErasureSecretMissing" or os.environ.get(SECRET_FILE):
            raise
        return f"{_NO_KEY}:{hashlib.sha256(text).hexdigest()}"
    # A key of its own: a seal and the digest of an erased key are never the same hash.
    return f"{secret.fingerprint}:{hmac.digest(secret.hash(_PURPOSE), text, 'sha256').hex()}"
