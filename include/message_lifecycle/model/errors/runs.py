"""Plans, runs and batches, and obstacles to them: holds, undo, files that must stay, erasure. No error text holds a key."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.given import BadInput, Refused

# Open, answered and outdated plans, runs and batches.


class UnknownPlan(BadInput):
    """The ledger has no plan of that id."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"plan {plan_id!r} is not in the ledger. `lifecycle ledger list` shows the plans that are.")


def ambiguous_plan(plan_id: str, found: tuple[str, ...]) -> BadInput:
    """More than one plan id begins with the given text."""
    return BadInput(f"plan {plan_id!r} is not one plan: {', '.join(found)} begin with it. Give more of the id.", code="AmbiguousPlan")


class OpenPlan(Refused):
    """DEL-1: a topic has at most one open plan."""

    def __init__(self, topic: str, plan_id: str, since: str) -> None:
        self.topic, self.plan_id, self.since = topic, plan_id, since
        super().__init__(
            f"topic {topic!r} has an open plan, {plan_id}, since {since}. Finish it (`lifecycle approve`, `publish`, `verify`) or let the next run do it."
        )


def already_answered(plan_id: str, granted: bool, by: str, at: str) -> Refused:
    """DEL-3: a person answers a plan only once."""
    return Refused(
        f"plan {plan_id} was {'approved' if granted else 'refused'} by {by} at {at} already. That answer stands; a new run makes a new plan.",
        code="AlreadyAnswered",
    )


def void_answer(plan_id: str, why: str) -> Refused:
    """DEL-3: an approval is about one plan, one report of the gate, and the settings of that time."""
    return Refused(
        f"the approval of plan {plan_id} is void: {why}. Nothing was removed. What is due is planned and asked again by the next run; "
        "what a person asked for, when they ask again.",
        code="VoidAnswer",
    )


def own_request(plan_id: str, by: str) -> Refused:
    """The setting `approver_is_not_requester`: nobody approves their own request."""
    return Refused(
        f"plan {plan_id} was asked for by {by}, and approver_is_not_requester is set: somebody else approves it. It still waits.",
        code="OwnRequest",
    )


def commit_lost(plan_id: str) -> Refused:
    """DEL-4: the ledger knows a plan as published, but planning from the present table gives the same plan again."""
    return Refused(
        f"plan {plan_id} is recorded as published, and what it was made from is as it was before its commit: the catalog, the log's files or its "
        "server were put back to a state from before, or what it had made was dropped. Nothing was done. Asked for a later time (--as-of), it is "
        "planned anew; the next scheduled run does that by itself.",
        code="CommitLost",
    )


def ledger_tampered(plan_id: str, what: str) -> Refused:
    """DEL-3: somebody changed a record in the ledger's database, or wrote it with another secret."""
    return Refused(
        f"{what} of plan {plan_id} is not as this program wrote it: its seal does not match. Somebody changed the ledger's database, or the "
        "secret of this installation is another one now. Nothing was removed. Find out who writes to the database, and check the secret. "
        f"Then refuse the plan (`lifecycle refuse {plan_id}`); the next run plans and asks again.",
        code="LedgerTampered",
    )


def unnamed_person(name: str) -> BadInput:
    """DEL-3: the ledger records the person who asks for a change and the person who answers for it."""
    return BadInput(
        f"the name {name!a} names nobody: it has no letter and no digit. Give the name of the authenticated user.", code="UnnamedPerson"
    )


def mixed_scripts(name: str, scripts: Sequence[str]) -> BadInput:
    """DEL-3: letters of another script can make one person's name look like another's."""
    return BadInput(
        f"the name {name} ({name!a}) has letters of several scripts: {', '.join(one.capitalize() for one in scripts)}. "
        "Allowed: letters of one script, so that nobody takes the name for another person's. Write the name in one script.",
        code="MixedScripts",
    )


def commit_not_on_main(plan_id: str, snapshot_id: int | None) -> Refused:
    """DEL-6: the ledger knows a plan as published, but the tables no longer have its commit."""
    at = "" if snapshot_id is None else f" as snapshot {snapshot_id}"
    return Refused(
        f"plan {plan_id} was published{at}, and the topic's tables do not have that commit any more: they go back to a time before it, because "
        "another engine rolled them back or the catalog was restored. What the plan removed is there again, so there is nothing to verify and "
        "nothing to undo. The next run plans anew what is due.",
        code="CommitNotOnMain",
    )


class NotReady(Refused):
    """A step came out of order: the plan has not passed the step before."""

    def __init__(self, plan_id: str, found: str, needed: str) -> None:
        self.plan_id, self.found, self.needed = plan_id, found, needed
        super().__init__(f"plan {plan_id} is {found}; this step needs {needed}.")


class PlanConflict(Refused):
    """The table changed in a way that the plan does not allow. A run must plan again (the fence, DEL-4)."""

    def __init__(self, plan_id: str, reason: str, rival: str | None = None) -> None:
        self.plan_id, self.reason, self.rival = plan_id, reason, rival
        super().__init__(f"plan {plan_id} no longer fits the table: {reason}. Plan again: `lifecycle run`.")


class TopicBusy(Refused):
    """Another run holds the topic's lock."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"another run works on topic {topic!r} now. Wait for it (`lifecycle status`), then try again.")


def ledger_mismatch(topic: str, reason: str) -> Refused:
    """The table was written with another ledger, or with a newer state of this one. The system refuses every deletion."""
    return Refused(
        f"topic {topic!r}: {reason}. No deletion runs with a ledger that may have forgotten consumers, holds or approvals. "
        "Point LIFECYCLE_LEDGER_URL at the right ledger or restore its newest backup, "
        "or take this ledger on knowingly: `lifecycle ledger accept TOPIC`.",
        code="LedgerMismatch",
    )


def changed_file(topic: str, path: str, batch_id: str) -> Refused:
    """An ingested file has other content now. Ingesting it again would store its messages twice, or mix two files."""
    return Refused(
        f"{path!r} was ingested into topic {topic!r} before (batch {batch_id}) with other content. "
        "A file is taken once: put new messages into a file of a new name. `lifecycle ingest --skip-changed` takes the other files.",
        code="ChangedFile",
    )


def repeated_file(topic: str, path: str) -> BadInput:
    """One batch names a file twice."""
    return BadInput(f"{path!r} is named twice in one batch for topic {topic!r}. Name each file once.", code="RepeatedFile")


def open_batch(topic: str, batch_id: str, since: str) -> Refused:
    """An ingest of the topic was cut off. The next ingest must first find out if the table has its commit."""
    return Refused(
        f"topic {topic!r} has an open batch, {batch_id}, since {since}. Finish it if the table holds its commit, else abandon it; `lifecycle ingest` does so.",
        code="OpenBatch",
    )


def unknown_batch(batch_id: str) -> BadInput:
    """The ledger has no such batch."""
    return BadInput(f"batch {batch_id!r} is not in the ledger.", code="UnknownBatch")


def nothing_to_replay(topic: str, batch_id: str, reason: str) -> BadInput:
    """A batch has no refused rows that could come in again."""
    return BadInput(
        f"topic {topic}: nothing of batch {batch_id} can be replayed: {reason}. `lifecycle quarantine list {topic}` lists its batches.",
        code="NothingToReplay",
    )


def unreplayable_rows(found: str, to_do: str) -> BadInput:
    """The raw text of refused rows cannot be read again. The replay took no row of the batch."""
    return BadInput(f"{found}. Nothing was taken; {to_do}.", code="UnreplayableRows")


def batch_not_open(batch_id: str, found: str) -> Refused:
    """A batch that has ended cannot end in another way."""
    return Refused(f"batch {batch_id!r} is {found}; only an open one can be finished or abandoned.", code="BatchNotOpen")


# Legal holds and the messages that they keep.


def invalid_hold(field: str, found: object, allowed: str) -> BadInput:
    """A hold does not name anything that can be held."""
    return BadInput(f"hold: {field} is {found!r}; allowed: {allowed}. Nothing was changed.", code="InvalidHold")


def unknown_hold(hold_id: str, found: Sequence[str] = ()) -> BadInput:
    """The ledger has no hold of that id, or several holds whose ids begin with it."""
    said = f"is not one hold: {', '.join(found)} begin with it. Give more of the id." if found else "is not in the ledger."
    return BadInput(f"hold {hold_id!r} {said} `lifecycle hold list --all` shows those that are.", code="UnknownHold")


def hold_released(hold_id: str, by: str, at: str) -> Refused:
    """An earlier release of the hold, by another request, is still valid."""
    return Refused(f"hold {hold_id} was released by {by} at {at} already.", code="HoldReleased")


class HeldByLegalHold(Refused):
    """DEL-8: the request names something that a legal hold keeps. The system refuses the whole request."""

    def __init__(self, topic: str, held: int | None, holds: Sequence[str]) -> None:
        self.topic, self.held, self.holds = topic, held, tuple(holds)
        what = "something" if held is None else f"{held} message(s)"
        super().__init__(
            f"topic {topic}: refused as a whole, for it names {what} under {'; '.join(holds)}. Nothing was removed. "
            "`lifecycle hold list` shows the holds; it can be asked again once they are released."
        )


# Reasons why nobody can undo a published plan (any more), or release its undone messages (DEL-7).


def _cannot_undo(plan_id: str, reason: str, *, code: str) -> Refused:
    """A plan that nobody can undo. A reason has a code of its own."""
    return Refused(f"plan {plan_id} cannot be undone: {reason}. Nothing was changed.", code=code)


def not_published(plan_id: str, found: str) -> Refused:
    """No part of the plan was ever published, so an undo has nothing to restore."""
    return _cannot_undo(plan_id, f"it is {found}, and only a published plan has removed anything", code="NotPublished")


def not_undoable(plan_id: str, reason: str) -> Refused:
    """An undo does not support this kind of plan."""
    return _cannot_undo(plan_id, reason, code="NotUndoable")


def undo_window_passed(plan_id: str, *, published_at: str, ended_at: str, now: str) -> Refused:
    """`undo_window` has passed since the plan was published, by the ledger's clock."""
    reason = f"it was published at {published_at} and its undo_window ended at {ended_at}; it is {now} now"
    return _cannot_undo(plan_id, reason, code="UndoWindowPassed")


def undo_source_gone(plan_id: str, reason: str) -> Refused:
    """The table's history or its files no longer hold the removed messages."""
    return _cannot_undo(plan_id, reason, code="UndoSourceGone")


def later_plan(plan_id: str, later: str, reason: str) -> Refused:
    """A later plan builds on the removals of this one."""
    return _cannot_undo(plan_id, f"plan {later} came after it and {reason}", code="LaterPlan")


def name_taken(plan_id: str, topic: str) -> Refused:
    """A deleted topic returns under its own name, but another topic has that name now."""
    return _cannot_undo(plan_id, f"another topic has the name {topic} now. It can be undone once that one is deleted", code="NameTaken")


def not_deletable(topic: str) -> BadInput:
    """A plan can delete a whole topic only if the topic is a table."""
    return BadInput(
        f"topic {topic} lies in no table: it goes whole with its files, or its streams, once it is in lifecycle.toml no more. "
        "Nothing was changed.",
        code="NotDeletable",
    )


def deletion_begun(topic: str, plan_id: str) -> Refused:
    """A run that deletes or restores the topic has died or is under way.

    Some tables may be away, so a new table could take one of their names.
    """
    return Refused(
        f"topic {topic}: its tables are half away by plan {plan_id}, and no table is made beside it meanwhile. Of a deletion that has begun, "
        f"`lifecycle publish {plan_id}` makes the end; where that is refused, `lifecycle run {topic}` takes it back. Of an undo that has "
        f"begun, `lifecycle undo {plan_id}` does.",
        code="DeletionBegun",
    )


def not_undone(plan_id: str) -> BadInput:
    """Only an undone plan has messages to release."""
    return BadInput(
        f"plan {plan_id} was not undone, so none of its messages wait to be released. `lifecycle undo {plan_id}` undoes it.",
        code="NotUndone",
    )


# Files and snapshots that must stay.


class OutsideTable(Refused):
    """A file to remove is not below its table's location."""

    def __init__(self, location: str, name: str) -> None:
        self.location, self.name = location, name
        super().__init__(
            f"{name!r} is no file below {location}. Allowed: names relative to the table's location, without '.', '..' or empty steps. "
            "Nothing was removed."
        )


class SnapshotInUse(Refused):
    """A snapshot to expire still has a branch or a tag."""

    def __init__(self, table: str, snapshot_id: int, ref: str) -> None:
        self.table, self.snapshot_id, self.ref = table, snapshot_id, ref
        super().__init__(
            f"table {table}: snapshot {snapshot_id} is where {ref!r} points. Nothing was expired; remove that branch or tag first."
        )


class NothingDeleted(BadInput):
    """The plan has no deleted topic now."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(
            f"plan {plan_id} {found}: there is no deleted topic of it to reclaim. `lifecycle topic list --deleted` names those that there are."
        )


def files_left(plan_id: str, topic: str, files: Sequence[str]) -> Refused:
    """A reclaim that the ledger does not know cannot be finished while files remain, because no plan names the files."""
    return Refused(
        f"plan {plan_id} has begun to remove the deleted topic {topic} for good, and this ledger does not know it (was it restored from "
        f"before?), so nothing is removed by it. There still: {', '.join(files)}. Nothing reads these files any more: remove what lies "
        "in their folders by hand, and run this again.",
        code="FilesLeft",
    )


def undo_window_open(plan_id: str, topic: str, *, until: str, now: str) -> Refused:
    """An undo can still restore the deleted topic, by the ledger's clock."""
    return Refused(
        f"topic {topic}, deleted by plan {plan_id}, can be brought back until {until}; it is {now} now. Nothing of it goes before.",
        code="UndoWindowOpen",
    )


# Requests of erasure, the secret that hides their keys, and obstacles to erasing a key from a store.


def unknown_erasure(request_id: str) -> BadInput:
    """The ledger has no erasure request of that id."""
    return BadInput(
        f"erasure request {request_id!r} is not in the ledger. `lifecycle erase list` shows those that are.", code="UnknownErasure"
    )


def ambiguous_erasure(request_id: str, found: tuple[str, ...]) -> BadInput:
    """More than one request id begins with the given text."""
    return BadInput(
        f"erasure request {request_id!r} is not one request: {', '.join(found)} begin with it. Give more of the id.",
        code="AmbiguousErasure",
    )


def no_receipt(request_id: str, state: str) -> BadInput:
    """The request is unfinished, or no topic was searched, so a receipt would have no content."""
    why = f"it is {state}. `lifecycle erase run {request_id}` carries it out"
    if state == "erased":
        why = f"there was no topic to search; `lifecycle erase run {request_id}` searches again"
    return BadInput(f"erasure request {request_id} has no receipt: {why}.", code="NoReceipt")


def nothing_forbidden(request_id: str, why: str) -> Refused:
    """The request forbids no key (any more), so there is no key to allow again."""
    return Refused(f"erasure request {request_id} forbids no key: {why}.", code="NothingForbidden")


def nothing_to_erase(request_id: str, why: str) -> Refused:
    """The request was refused. A new request can ask for the same key again."""
    return Refused(f"erasure request {request_id} was refused: {why}. Nothing went; `lifecycle erase` asks again.", code="NothingToErase")


def unusable_key(reason: str) -> BadInput:
    """The given key is invalid. The error never shows it."""
    return BadInput(
        f"the key cannot be used: {reason}. Allowed: one line of UTF-8 text on standard input, or with --base64 a line of base64.",
        code="UnusableKey",
    )


def unexplained_erasure() -> BadInput:
    """The ledger records the reason for an erasure."""
    return BadInput("the request gives no reason. Give the reason by --why.", code="UnexplainedErasure")


def invalid_erasure_secret(found_bytes: int, least_bytes: int) -> BadInput:
    """The secret is so short that somebody could guess a key from its digest."""
    return BadInput(
        f"the erasure secret has {found_bytes} bytes. Allowed: {least_bytes} or more, random ones, in a file that only this user may read.",
        code="InvalidErasureSecret",
    )


def erasure_secret_missing(place: str, why: str) -> Refused:
    """The secret of keyed hashes is missing. A new secret would match none of the recorded hashes."""
    return Refused(
        f"the erasure secret is not to be had from {place}: {why}. Put the file back from its copy, or name it by "
        "LIFECYCLE_ERASURE_SECRET_FILE. Where it is lost for good, `lifecycle erase allow REQUEST_ID` lifts what the recorded digests "
        "forbid; then a new secret can be made.",
        code="ErasureSecretMissing",
    )


def erasure_secret_changed(*, found: str, needed: str) -> Refused:
    """Another secret made a digest. A comparison would find nothing and report that wrongly."""
    return Refused(
        f"the erasure secret has the fingerprint {found}; the recorded digest of the key was made with {needed}. Put the right secret "
        "back (LIFECYCLE_ERASURE_SECRET_FILE, embedded: .lifecycle/secrets/erasure). Nothing was compared.",
        code="ErasureSecretChanged",
    )


def unsupported_erasure(where: str, reason: str) -> Refused:
    """A key cannot be erased from the whole topic, so the system erases none of it."""
    return Refused(f"{where}: a key cannot be erased here: {reason}. Nothing was changed.", code="UnsupportedErasure")


def erasure_unfinished(where: str, reason: str) -> Refused:
    """An erasure has left something that it should have removed."""
    return Refused(f"{where}: the erasure has not ended: {reason}. Run it again: it goes on where it stopped.", code="ErasureUnfinished")


def invalid_receipt(reason: str) -> Refused:
    """The stored receipt is invalid."""
    return Refused(f"the receipt is not one of an erasure: {reason}.", code="InvalidReceipt")
