"""Plans, runs and batches, and obstacles to them: holds, undo, files that must stay, erasure. No error text holds a key."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.given import BadInput, Refused
from message_lifecycle.model.phrases import amount, short

# Open, answered and outdated plans, runs and batches.


class UnknownPlan(BadInput):
    """The ledger has no plan of that id."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"plan {plan_id!r} is not in the ledger. List the plans: `lifecycle ledger list`.")


def ambiguous_plan(plan_id: str, found: tuple[str, ...]) -> BadInput:
    """More than one plan id begins with the given text."""
    return BadInput(f"plan {plan_id!r} is ambiguous: {', '.join(found)} begin with it. Give more of the id.", code="AmbiguousPlan")


class OpenPlan(Refused):
    """DEL-1: a topic has at most one open plan."""

    def __init__(self, topic: str, plan_id: str, since: str) -> None:
        self.topic, self.plan_id, self.since = topic, plan_id, since
        super().__init__(
            f"topic {topic!r} has an open plan, {short(plan_id)}, since {since}. Allowed: one open plan. Finish it (`lifecycle approve`, "
            "`publish`, `verify`), or wait for the next run."
        )


def already_answered(plan_id: str, granted: bool, by: str, at: str) -> Refused:
    """DEL-3: a plan takes one answer. Only a refusal may follow an approval, until the plan is committed."""
    undo = (
        f"If it is published, bring the messages back: `lifecycle undo {short(plan_id)} --by NAME --why WHY`. "
        f"If it is not, stop it: `lifecycle refuse {short(plan_id)} --by NAME --why WHY`."
    )
    return Refused(
        f"{by} {'approved' if granted else 'refused'} plan {short(plan_id)} at {at}. A plan takes one answer. "
        f"{undo if granted else 'A new run makes a new plan.'}",
        code="AlreadyAnswered",
    )


def void_answer(plan_id: str, why: str) -> Refused:
    """DEL-3: an approval is about one plan, one report of the gate, and the settings of that time."""
    return Refused(
        f"the approval of plan {short(plan_id)} is void: {why}. Nothing was removed. The next run plans and asks again. Make a request again "
        "yourself.",
        code="VoidAnswer",
    )


def own_request(plan_id: str, by: str) -> Refused:
    """The setting `approver_is_not_requester`: nobody approves their own request."""
    return Refused(
        f"{by} requested plan {short(plan_id)}, and approver_is_not_requester is set. Another person must approve it. The plan is still pending.",
        code="OwnRequest",
    )


def commit_lost(plan_id: str) -> Refused:
    """DEL-4: the ledger knows a plan as published, but planning from the present table gives the same plan again."""
    return Refused(
        f"plan {short(plan_id)} is recorded as published, but the table has no commit of it. Someone restored the catalog, the log's files or the "
        "server from an earlier state. Nothing was changed. To plan again, give a later --as-of, or wait for the next scheduled run.",
        code="CommitLost",
    )


def ledger_tampered(plan_id: str, what: str) -> Refused:
    """DEL-3: somebody changed a record in the ledger's database, or wrote it with another secret."""
    return Refused(
        f"{what} of plan {short(plan_id)}: the seal does not match. Someone changed the ledger's database, or this installation has another "
        "secret now. Nothing was removed. Check who writes to the database, and check the secret. "
        f"Then refuse the plan: `lifecycle refuse {short(plan_id)} --by NAME --why WHY`. The next run plans and asks again.",
        code="LedgerTampered",
    )


def unnamed_person(name: str) -> BadInput:
    """DEL-3: the ledger records the person who asks for a change and the person who answers for it."""
    return BadInput(f"the name {name!a} has no letter and no digit. Give the name of the authenticated user.", code="UnnamedPerson")


def mixed_scripts(name: str, scripts: Sequence[str]) -> BadInput:
    """DEL-3: letters of another script can make one person's name look like another's."""
    return BadInput(
        f"the name {name} ({name!a}) has letters of several scripts: {', '.join(one.capitalize() for one in scripts)}. "
        "Allowed: letters of one script. Mixed scripts can imitate another person's name.",
        code="MixedScripts",
    )


def commit_not_on_main(plan_id: str, snapshot_id: int | None) -> Refused:
    """DEL-6: the ledger knows a plan as published, but the tables no longer have its commit."""
    at = "" if snapshot_id is None else f" as snapshot {snapshot_id}"
    return Refused(
        f"plan {short(plan_id)} was published{at}, but the tables no longer have that commit. Another engine rolled them back, or someone restored "
        "the catalog. The removed messages are back, so there is nothing to verify or undo. The next run plans again.",
        code="CommitNotOnMain",
    )


class NotReady(Refused):
    """A step came out of order: the plan has not passed the step before."""

    def __init__(self, plan_id: str, found: str, needed: str) -> None:
        self.plan_id, self.found, self.needed = plan_id, found, needed
        super().__init__(f"plan {short(plan_id)} is {found}. This step needs {needed}.")


class PlanConflict(Refused):
    """The table changed in a way that the plan does not allow. A run must plan again (the fence, DEL-4)."""

    def __init__(self, plan_id: str, reason: str, rival: str | None = None) -> None:
        self.plan_id, self.reason, self.rival = plan_id, reason, rival
        super().__init__(f"plan {short(plan_id)} no longer fits the table: {reason}. Plan again: `lifecycle run`.")


class TopicBusy(Refused):
    """Another run holds the topic's lock."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"another run works on topic {topic!r} now. Wait for it (`lifecycle status`), then try again.")


def ledger_mismatch(topic: str, reason: str) -> Refused:
    """The table was written with another ledger, or with a newer state of this one. The topic deletes nothing and takes nothing in."""
    return Refused(
        f"topic {topic!r}: {reason}. This ledger may lack consumers, holds or approvals, so the topic deletes nothing and takes nothing in. "
        "Point LIFECYCLE_LEDGER_URL at the right ledger, or restore its newest backup. "
        "To use this ledger anyway: `lifecycle ledger accept TOPIC`.",
        code="LedgerMismatch",
    )


def changed_file(topic: str, path: str, batch_id: str) -> Refused:
    """An ingested file has other content now. Ingesting it again would store its messages twice, or mix two files."""
    return Refused(
        f"{path!r} changed after its ingest into topic {topic!r} (batch {batch_id}). "
        "A file is ingested once. Put new messages into a new file. To ingest the other files: `lifecycle ingest --skip-changed`.",
        code="ChangedFile",
    )


def repeated_file(topic: str, path: str) -> BadInput:
    """One batch names a file twice."""
    return BadInput(f"{path!r} is named twice in one batch for topic {topic!r}. Name each file once.", code="RepeatedFile")


def open_batch(topic: str, batch_id: str, since: str) -> Refused:
    """An ingest of the topic was cut off. The next ingest must first find out if the table has its commit."""
    return Refused(
        f"topic {topic!r} has an unfinished batch, {batch_id}, since {since}. Run `lifecycle ingest`: it finishes or discards the batch.",
        code="OpenBatch",
    )


def unknown_batch(batch_id: str) -> BadInput:
    """The ledger has no such batch."""
    return BadInput(f"batch {batch_id!r} is not in the ledger.", code="UnknownBatch")


def nothing_to_replay(topic: str, batch_id: str, reason: str) -> BadInput:
    """A batch has no refused rows that could come in again."""
    return BadInput(
        f"topic {topic}: batch {batch_id} has nothing to replay: {reason}. List the batches: `lifecycle quarantine list {topic}`.",
        code="NothingToReplay",
    )


def unreplayable_rows(found: str, to_do: str) -> BadInput:
    """The raw text of refused rows cannot be read again. The replay took no row of the batch."""
    return BadInput(f"{found}. Nothing was replayed. {to_do[0].upper()}{to_do[1:]}.", code="UnreplayableRows")


def batch_not_open(batch_id: str, found: str) -> Refused:
    """A batch that has ended cannot end in another way."""
    return Refused(f"batch {batch_id!r} is {found}. Only an open batch can be finished or abandoned.", code="BatchNotOpen")


# Legal holds and the messages that they keep.


def invalid_hold(field: str, found: object, allowed: str) -> BadInput:
    """A hold does not name anything that can be held."""
    return BadInput(f"hold: {field} is {found!r}. Allowed: {allowed}. Nothing was changed.", code="InvalidHold")


def unknown_hold(hold_id: str, found: Sequence[str] = ()) -> BadInput:
    """The ledger has no hold of that id, or several holds whose ids begin with it."""
    said = f"is ambiguous: {', '.join(found)} begin with it. Give more of the id." if found else "is not in the ledger."
    return BadInput(f"hold {hold_id!r} {said} List the holds: `lifecycle hold list --all`.", code="UnknownHold")


def hold_released(hold_id: str, by: str, at: str) -> Refused:
    """An earlier release of the hold, by another request, is still valid."""
    return Refused(f"{by} released hold {hold_id} at {at} already.", code="HoldReleased")


class HeldByLegalHold(Refused):
    """DEL-8: the request names something that a legal hold keeps. The system refuses the whole request."""

    def __init__(self, topic: str, held: int | None, holds: Sequence[str]) -> None:
        self.topic, self.held, self.holds = topic, held, tuple(holds)
        what = "an unknown number of messages" if held is None else amount(held, "messages")
        super().__init__(
            f"topic {topic}: the request names {what} under {'; '.join(holds)}. Nothing was removed. "
            "Release the hold, or leave these messages out. List the holds: `lifecycle hold list`."
        )


# Reasons why nobody can undo a published plan (any more), or release its undone messages (DEL-7).


def _cannot_undo(plan_id: str, reason: str, *, code: str) -> Refused:
    """A plan that nobody can undo. A reason has a code of its own."""
    return Refused(f"plan {short(plan_id)} cannot be undone: {reason}. Nothing was changed.", code=code)


def not_published(plan_id: str, found: str) -> Refused:
    """No part of the plan was ever published, so an undo has nothing to restore. A run may still publish an open plan."""
    reason = f"it is {found}. Only a published plan has removed messages"
    if found == "open":
        reason = f"it is open, so it has removed nothing yet. Stop it: `lifecycle refuse {short(plan_id)} --by NAME --why WHY`"
    return _cannot_undo(plan_id, reason, code="NotPublished")


def not_undoable(plan_id: str, reason: str) -> Refused:
    """An undo does not support this kind of plan."""
    return _cannot_undo(plan_id, reason, code="NotUndoable")


def undo_window_passed(plan_id: str, *, published_at: str, ended_at: str, now: str) -> Refused:
    """`undo_window` has passed since the ledger recorded the outcome, by its clock."""
    reason = f"it was published at {published_at}, and its undo_window ended at {ended_at}. Now it is {now}"
    return _cannot_undo(plan_id, reason, code="UndoWindowPassed")


def undo_source_gone(plan_id: str, reason: str) -> Refused:
    """The table's history or its files no longer hold the removed messages."""
    return _cannot_undo(plan_id, reason, code="UndoSourceGone")


def later_plan(plan_id: str, later: str, reason: str) -> Refused:
    """A later plan builds on the removals of this one."""
    return _cannot_undo(plan_id, f"later plan {short(later)} {reason}", code="LaterPlan")


def name_taken(plan_id: str, topic: str) -> Refused:
    """A deleted topic returns under its own name, but another topic has that name now."""
    return _cannot_undo(plan_id, f"another topic has the name {topic} now. Delete that topic first", code="NameTaken")


def not_deletable(topic: str) -> BadInput:
    """A plan can delete a whole topic only if the topic is a table."""
    return BadInput(
        f"topic {topic} is not in a table, so this command cannot delete it. Delete its files or streams, and remove it from lifecycle.toml. "
        "Nothing was changed.",
        code="NotDeletable",
    )


def deletion_begun(topic: str, plan_id: str) -> Refused:
    """A run that deletes or restores the topic has died or is under way.

    Some tables may be away, so a new table could take one of their names.
    """
    return Refused(
        f"topic {topic}: plan {short(plan_id)} has moved only some of its tables, so no new table is made. Finish a deletion: "
        f"`lifecycle publish {short(plan_id)}`. If that is refused, reverse it: `lifecycle run {topic}`. Finish an undo: "
        f"`lifecycle undo {short(plan_id)} --by NAME --why WHY`.",
        code="DeletionBegun",
    )


def not_undone(plan_id: str) -> BadInput:
    """Only an undone plan has messages to release."""
    return BadInput(
        f"plan {short(plan_id)} was not undone, so it has no messages to release. "
        f"To undo it: `lifecycle undo {short(plan_id)} --by NAME --why WHY`.",
        code="NotUndone",
    )


# Files and snapshots that must stay.


class OutsideTable(Refused):
    """A file to remove is not below its table's location."""

    def __init__(self, location: str, name: str) -> None:
        self.location, self.name = location, name
        super().__init__(
            f"{name!r} is not a file below {location}. Allowed: names relative to the table's location, without '.', '..' or empty steps. "
            "Nothing was removed."
        )


class SnapshotInUse(Refused):
    """A snapshot to expire still has a branch or a tag."""

    def __init__(self, table: str, snapshot_id: int, ref: str) -> None:
        self.table, self.snapshot_id, self.ref = table, snapshot_id, ref
        super().__init__(f"table {table}: {ref!r} points to snapshot {snapshot_id}. Nothing was expired. Remove that branch or tag first.")


class NothingDeleted(BadInput):
    """The plan has no deleted topic now."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(
            f"plan {short(plan_id)} {found}, so it has no deleted topic to reclaim. List deleted topics: `lifecycle topic list --deleted`."
        )


def files_left(plan_id: str, topic: str, files: Sequence[str]) -> Refused:
    """A reclaim that the ledger does not know cannot be finished while files remain, because no plan names the files."""
    return Refused(
        f"plan {short(plan_id)} began to remove the deleted topic {topic}, but this ledger does not have the plan. Nothing more was removed. "
        f"Left: {', '.join(files)}. Nothing reads these files. Delete their folders by hand, then run this again.",
        code="FilesLeft",
    )


def undo_window_open(plan_id: str, topic: str, *, until: str, now: str) -> Refused:
    """An undo can still restore the deleted topic, by the ledger's clock."""
    return Refused(
        f"plan {short(plan_id)} deleted topic {topic}, and its undo is possible until {until}. Now it is {now}. Reclaim it after that time.",
        code="UndoWindowOpen",
    )


# Requests of erasure, the secret that hides their keys, and obstacles to erasing a key from a store.


def unknown_erasure(request_id: str) -> BadInput:
    """The ledger has no erasure request of that id."""
    return BadInput(
        f"erasure request {request_id!r} is not in the ledger. List the requests: `lifecycle erase list`.", code="UnknownErasure"
    )


def ambiguous_erasure(request_id: str, found: tuple[str, ...]) -> BadInput:
    """More than one request id begins with the given text."""
    return BadInput(
        f"erasure request {request_id!r} is ambiguous: {', '.join(found)} begin with it. Give more of the id.",
        code="AmbiguousErasure",
    )


def no_receipt(request_id: str, state: str) -> BadInput:
    """The request is unfinished, or no topic was searched, so a receipt would have no content."""
    why = f"it is {state}. Carry it out: `lifecycle erase run {short(request_id)} --by NAME --why WHY`"
    if state == "erased":
        why = f"there was no topic to search. Search again: `lifecycle erase run {short(request_id)} --by NAME --why WHY`"
    return BadInput(f"erasure request {short(request_id)} has no receipt: {why}.", code="NoReceipt")


def nothing_forbidden(request_id: str, why: str) -> Refused:
    """The request forbids no key (any more), so there is no key to allow again."""
    return Refused(f"erasure request {short(request_id)} forbids no key: {why}.", code="NothingForbidden")


def nothing_to_erase(request_id: str, why: str) -> Refused:
    """The request was refused. A new request can ask for the same key again."""
    return Refused(
        f"erasure request {short(request_id)} was refused: {why}. Nothing was erased. Request again: `lifecycle erase`.",
        code="NothingToErase",
    )


def unusable_key(reason: str) -> BadInput:
    """The given key is invalid. The error never shows it."""
    return BadInput(
        f"the key cannot be used: {reason}. Allowed: one line of UTF-8 text on standard input, or with --base64 a line of base64.",
        code="UnusableKey",
    )


def too_many_keys(given: int, most: int) -> BadInput:
    """One request names more keys than a plan and a receipt can list."""
    return BadInput(
        f"the request names {given:,} keys. Allowed: up to {most:,} keys in one request. Divide the keys among several requests.",
        code="TooManyKeys",
    )


def unexplained_erasure() -> BadInput:
    """The ledger records the reason for an erasure."""
    return BadInput("the request has no reason. Give one: --why WHY.", code="UnexplainedErasure")


def invalid_erasure_secret(found_bytes: int, least_bytes: int) -> BadInput:
    """The secret is so short that somebody could guess a key from its digest."""
    return BadInput(
        f"the erasure secret has {found_bytes} bytes. Allowed: {least_bytes} or more random bytes, in a file that only this user can read.",
        code="InvalidErasureSecret",
    )


def erasure_secret_missing(place: str, why: str) -> Refused:
    """The secret of keyed hashes is missing. A new secret would match none of the recorded hashes."""
    return Refused(
        f"cannot read the erasure secret from {place}: {why}. Restore the file from its copy, or name it in LIFECYCLE_ERASURE_SECRET_FILE. "
        "If it is lost, lift each forbidden key: `lifecycle erase allow REQUEST_ID --by NAME --why WHY`. Then a new secret can be made.",
        code="ErasureSecretMissing",
    )


def erasure_secret_changed(*, found: str, needed: str) -> Refused:
    """Another secret made a digest. A comparison would find nothing and report that wrongly."""
    return Refused(
        f"the erasure secret has the fingerprint {found}, but the recorded digest needs {needed}. Nothing was compared. Restore the right "
        "secret (LIFECYCLE_ERASURE_SECRET_FILE, embedded: .lifecycle/secrets/erasure).",
        code="ErasureSecretChanged",
    )


def unsupported_erasure(where: str, reason: str) -> Refused:
    """A key cannot be erased from the whole topic, so the system erases none of it."""
    return Refused(f"{where}: a key cannot be erased here: {reason}. Nothing was changed.", code="UnsupportedErasure")


def erasure_unfinished(where: str, reason: str) -> Refused:
    """An erasure has left something that it should have removed."""
    return Refused(f"{where}: the erasure is not finished: {reason}. Run it again to continue.", code="ErasureUnfinished")


def invalid_receipt(reason: str) -> Refused:
    """The ledger's row of a receipt has another format, or is no whole receipt."""
    return Refused(
        f"not a receipt of an erasure: {reason}. Use the program that wrote it, or restore the newest backup: `lifecycle ledger restore FILE`.",
        code="InvalidReceipt",
    )
