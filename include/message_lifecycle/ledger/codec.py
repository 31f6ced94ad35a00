"""Plans, stages, reports, approvals and outcomes as JSON text, and strict parsers. Also the errors of the ledger's storage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from message_lifecycle.model.change import Change
from message_lifecycle.model.errors import BadInput, LifecycleError, Refused, Unavailable
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, Staged
from message_lifecycle.model.plan import PLAN_FORMAT, Plan, fields_of
from message_lifecycle.model.plan_state import PlanState, state_of
from message_lifecycle.model.setting_list import Value

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Errors of the ledger's own storage. No error shows a password.


def invalid_ledger_url(reason: str) -> BadInput:
    """The ledger's address is unreadable, or names a database that cannot hold a ledger."""
    return BadInput(
        f"LIFECYCLE_LEDGER_URL: {reason}. Allowed: postgresql://user:password@host:port/database, or sqlite:///file for trials.",
        code="InvalidLedgerUrl",
    )


def ledger_unavailable(place: str, reason: str) -> Unavailable:
    """The ledger's database does not answer, or stopped in the middle."""
    return Unavailable(
        f"the ledger at {place} does not answer: {reason}. Start its database (the embedded one: `lifecycle up`) or correct "
        "LIFECYCLE_LEDGER_URL, then try again.",
        code="LedgerUnavailable",
    )


def ledger_not_migrated(place: str) -> Refused:
    """The database has no ledger yet."""
    return Refused(f"the database at {place} has no ledger yet. Run `lifecycle ledger migrate`.", code="LedgerNotMigrated")


def ledger_too_new(place: str, found: int, known: int) -> Refused:
    """A newer program made the ledger. An older program must not write to unknown tables."""
    return Refused(
        f"the ledger at {place} is of version {found}, this program knows version {known}. Use the newer program.", code="LedgerTooNew"
    )


def ledger_too_old(place: str, found: int, known: int) -> Refused:
    """An older program made the ledger. Until the first release, no newer program reads or migrates its tables."""
    return Refused(
        f"the ledger at {place} is of version {found}, made by an older program; this program reads version {known} alone. "
        "Use the program that made it, or a new database: LIFECYCLE_LEDGER_URL names one, and the embedded default makes one in a new folder "
        "(LIFECYCLE_HOME). Tables of the old ledger then ask for `lifecycle ledger accept`.",
        code="LedgerTooOld",
    )


def corrupt_record(
    what: str,
    reason: str,
    *,
    advice: str = "Use the program that wrote it, or restore the newest backup: `lifecycle ledger restore FILE`.",
) -> LifecycleError:
    """A record of the ledger was changed, or a program of another version wrote it.

    Args:
        what: The name of the record.
        reason: Why the record cannot be read.
        advice: What to do.
    """
    return LifecycleError(f"{what} in the ledger cannot be read: {reason}. Nothing is done with it. {advice}", code="CorruptRecord")


def other_format(what: str, document: str) -> LifecycleError:
    """Return `CorruptRecord` for a plan of a format that this program does not read. The advice names the program to use."""
    reason = f"its format is not {PLAN_FORMAT}, the only one that this program reads"
    found = re.search(r'"format":(\d+),', document)
    if found is None:
        return corrupt_record(what, reason)
    if int(found[1]) > PLAN_FORMAT:
        return corrupt_record(what, f"{reason}; a newer program wrote format {found[1]}", advice="Use the newer program.")
    advice = "Go back to that program to finish, explain or undo the plan: docs/upgrade.md, *The way back*."
    return corrupt_record(what, f"{reason}; an older program wrote format {found[1]}", advice=advice)


def backup_not_written(path: str, reason: str) -> Unavailable:
    """The backup's file cannot be written. An earlier file of that name is unchanged."""
    return Unavailable(
        f"the backup {path} was not written: {reason}. Name a file in a folder that can be written and has room.", code="BackupNotWritten"
    )


def broken_backup(path: str, reason: str) -> BadInput:
    """A file is not a complete backup of a ledger. The restore changed nothing."""
    return BadInput(
        f"{path} is not a whole ledger backup: {reason}. Nothing was restored. Give a file that `lifecycle ledger backup` wrote.",
        code="BrokenBackup",
    )


def ledger_not_empty(place: str, found: str) -> Refused:
    """A restore would mix the records of two ledgers."""
    return Refused(
        f"the ledger at {place} is not empty: {found}. Restore into a new database, then point LIFECYCLE_LEDGER_URL at it.",
        code="LedgerNotEmpty",
    )


# Writing gives the model's canonical JSON. Reading uses pydantic over the model's own dataclasses.
# A wrong type, a missing or an unknown field is CorruptRecord, because a plan that is read only in part may be another plan.
#
# A plan's text stays as recorded, except that an erasure may remove a name from it. The plan's id is the hash of the original text.


Recorded = Staged | GateReport | Approval | Outcome
T = TypeVar("T", Staged, GateReport, Approval, Outcome)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # costs as much as the whole due check: import only to read

    return TypeAdapter(kind)


@cache
def _recorded_plan() -> type[Plan]:
    """Return a plan class whose changes pydantic selects by their kind, instead of trying each class."""
    from pydantic import Field

    by_kind = Annotated[Change, Field(discriminator="kind")]
    return make_dataclass("RecordedPlan", [("changes", tuple[by_kind, ...])], bases=(Plan,), frozen=True, kw_only=True)


def _read(kind: Any, text: str, what: str) -> Any:
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise corrupt_record(what, f"{place}: {first['msg']}" if place else str(first["msg"])) from error


def canonical(content: object) -> str:
    """Return JSON with sorted keys and without white space. Equal values have equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def to_json(value: Recorded) -> str:
    return json.dumps(value, default=fields_of, sort_keys=True, separators=(",", ":"))


def from_json(kind: type[T], text: str) -> T:
    """Raises CorruptRecord."""
    what = f"a record of {kind.__name__}"
    value: T = _read(kind, text, what)
    if to_json(value) != text:
        raise corrupt_record(what, "it does not hold exactly the fields that this program writes")
    return value


def plan_id_of(document: str) -> str:
    """Return `Plan.plan_id` for a plan's canonical JSON, without encoding it again (0.15 s for 60,000 files)."""
    return hashlib.sha256(document.encode()).hexdigest()[:32]


# A run reads its plan for every verb, and an undo reads its parent's plan as well. Equal texts are the same plan.
@lru_cache(maxsize=2)
def plan_from_json(document: str, plan_id: str, text_id: str | None = None) -> Plan:
    """Read a plan's text.

    Args:
        document: The plan's text.
        plan_id: The id that the ledger has recorded for the plan.
        text_id: The hash of the text after an erasure removed a name from it. None if no erasure did.

    Raises:
        CorruptRecord: The text was changed, or its format is unknown.
    """
    what, known = f"plan {plan_id}", text_id or plan_id
    if plan_id_of(document) != known:
        raise corrupt_record(what, "its text was changed after it was recorded")
    # JSON escapes a quote within a text, so only a field can match this.
    if f'"format":{PLAN_FORMAT},' not in document:
        raise other_format(what, document)
    recorded: Plan = _read(_recorded_plan(), document, what)
    plan = Plan(**{field.name: getattr(recorded, field.name) for field in fields(Plan)})
    if plan.format != PLAN_FORMAT or plan.plan_id != known:
        raise corrupt_record(what, "it does not hold exactly the fields that this program writes")
    return plan if text_id is None else plan.known_as(plan_id)


def settings_from_json(text: str) -> dict[str, Value | None]:
    """Raises CorruptRecord."""
    found: dict[str, Value | None] = _read(dict[str, Value | None], text, "a record of settings")
    return found


def settings_to_json(settings: Mapping[str, Value | None]) -> str:
    return canonical(dict(settings))


def pairs_from_json(text: str) -> tuple[tuple[str, str], ...]:
    """Read the holders in a due state, without pydantic: the due check must not wait for that import. Raises CorruptRecord."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in found
    ):
        raise corrupt_record("the due state of a topic", "its holders are not pairs of text")
    return tuple((name, state) for name, state in found)


def recorded_state(word: str, judgement: str | None, approval: str | None) -> PlanState:
    """Return the state of a plan by the columns of the ledger's table."""
    return state_of(word, judgement, None if approval is None else from_json(Approval, approval).granted)
