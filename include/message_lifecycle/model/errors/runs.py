"""Plans, runs and batches, and what stands against them: holds, undo, files that may not go, erasure. No message holds a key."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.kinds import BadInput, Refused

# Plans, runs and batches: what is open, answered, or overtaken.


class UnknownPlan(BadInput):
    """No plan of that id in the ledger."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"plan {plan_id!r} is not in the ledger. `lifecycle ledger list` shows the plans that are.")


class AmbiguousPlan(BadInput):
    """The beginning of a plan id that more than one plan has."""

    def __init__(self, plan_id: str, found: tuple[str, ...]) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(f"plan {plan_id!r} is not one plan: {', '.join(found)} begin with it. Give more of the id.")


class OpenPlan(Refused):
    """DEL-1: a topic has at most one open plan."""

    def __init__(self, topic: str, plan_id: str, since: str) -> None:
        self.topic, self.plan_id, self.since = topic, plan_id, since
        super().__init__(
            f"topic {topic!r} has an open plan, {plan_id}, since {since}. Finish it (`lifecycle approve`, `publish`, `verify`) or let the next run do it."
        )


class AlreadyAnswered(Refused):
    """DEL-3: a person's word on a plan is given once."""

    def __init__(self, plan_id: str, granted: bool, by: str, at: str) -> None:
        self.plan_id, self.granted, self.by, self.at = plan_id, granted, by, at
        super().__init__(
            f"plan {plan_id} was {'approved' if granted else 'refused'} by {by} at {at} already. That answer stands; a new run makes a new plan."
        )


class OwnRequest(Refused):
    """The setting `approver_is_not_requester`: nobody approves what they asked for."""

    def __init__(self, plan_id: str, by: str) -> None:
        self.plan_id, self.by = plan_id, by
        super().__init__(
            f"plan {plan_id} was asked for by {by}, and approver_is_not_requester is set: somebody else approves it. It still waits."
        )


class UnnamedApproval(BadInput):
    """DEL-3: an approval names the person who gave it."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"the answer to plan {plan_id} names nobody. Give the name of the authenticated user.")


class NotReady(Refused):
    """A verb was asked out of order: the plan has not been through the step before."""

    def __init__(self, plan_id: str, found: str, needed: str) -> None:
        self.plan_id, self.found, self.needed = plan_id, found, needed
        super().__init__(f"plan {plan_id} is {found}; this step needs {needed}.")


class PlanConflict(Refused):
    """The table changed in a way the plan does not allow; it must be planned again (the fence, DEL-4)."""

    def __init__(self, plan_id: str, reason: str, rival: str | None = None) -> None:
        self.plan_id, self.reason, self.rival = plan_id, reason, rival
        super().__init__(f"plan {plan_id} no longer fits the table: {reason}. Plan again: `lifecycle run`.")


class TopicBusy(Refused):
    """Another run holds the topic's lock."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"another run works on topic {topic!r} now. Wait for it (`lifecycle status`), then try again.")


class LedgerMismatch(Refused):
    """The ledger is not the one the table was written with, or an older state of it; every deletion is refused."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"topic {topic!r}: {reason}. No deletion runs with a ledger that may have forgotten consumers, holds or approvals. "
            "Point LIFECYCLE_LEDGER_URL at the right ledger or restore its newest backup, "
            "or take this ledger on knowingly: `lifecycle ledger accept TOPIC`."
        )


class ChangedFile(Refused):
    """A file that was ingested before has other content now; taking it again would store its messages twice, or mix two files."""

    def __init__(self, topic: str, path: str, batch_id: str) -> None:
        self.topic, self.path, self.batch_id = topic, path, batch_id
        super().__init__(
            f"{path!r} was ingested into topic {topic!r} before (batch {batch_id}) with other content. "
            "A file is taken once: put new messages into a file of a new name."
        )


class RepeatedFile(BadInput):
    """One batch names a file twice."""

    def __init__(self, topic: str, path: str) -> None:
        self.topic, self.path = topic, path
        super().__init__(f"{path!r} is named twice in one batch for topic {topic!r}. Name each file once.")


class OpenBatch(Refused):
    """An ingest of the topic was cut off; whether its commit is in the table must be found out first."""

    def __init__(self, topic: str, batch_id: str, since: str) -> None:
        self.topic, self.batch_id, self.since = topic, batch_id, since
        super().__init__(
            f"topic {topic!r} has an open batch, {batch_id}, since {since}. Finish it if the table holds its commit, else abandon it; `lifecycle ingest` does so."
        )


class UnknownBatch(BadInput):
    """No such batch in the ledger."""

    def __init__(self, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(f"batch {batch_id!r} is not in the ledger.")


class BatchNotOpen(Refused):
    """A batch that has ended cannot end in another way."""

    def __init__(self, batch_id: str, found: str) -> None:
        self.batch_id, self.found = batch_id, found
        super().__init__(f"batch {batch_id!r} is {found}; only an open one can be finished or abandoned.")


# Legal holds, and what they keep.


class InvalidHold(BadInput):
    """A hold that names nothing that can be held."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"hold: {field} is {found!r}; allowed: {allowed}. Nothing was changed.")


class UnknownHold(BadInput):
    """No hold of that id in the ledger, or more than one whose id begins so."""

    def __init__(self, hold_id: str, found: Sequence[str] = ()) -> None:
        self.hold_id, self.found = hold_id, tuple(found)
        said = f"is not one hold: {', '.join(found)} begin with it. Give more of the id." if found else "is not in the ledger."
        super().__init__(f"hold {hold_id!r} {said} `lifecycle hold list --all` shows those that are.")


class HoldReleased(Refused):
    """The hold was released before, by another word; that one stands."""

    def __init__(self, hold_id: str, by: str, at: str) -> None:
        self.hold_id, self.by, self.at = hold_id, by, at
        super().__init__(f"hold {hold_id} was released by {by} at {at} already.")


class HeldByLegalHold(Refused):
    """DEL-8: what was asked for names something that a legal hold keeps; all of it is refused."""

    def __init__(self, topic: str, held: int | None, holds: Sequence[str]) -> None:
        self.topic, self.held, self.holds = topic, held, tuple(holds)
        what = "something" if held is None else f"{held} message(s)"
        super().__init__(
            f"topic {topic}: refused as a whole, for it names {what} under {'; '.join(holds)}. Nothing was removed. "
            "`lifecycle hold list` shows the holds; it can be asked again once they are released."
        )


# Why a published plan cannot be taken back (any more), or its undone messages not be released (DEL-7).


class CannotUndo(Refused):
    """A plan that cannot be taken back; each reason is a leaf of its own."""

    def __init__(self, plan_id: str, reason: str) -> None:
        self.plan_id, self.reason = plan_id, reason
        super().__init__(f"plan {plan_id} cannot be undone: {reason}. Nothing was changed.")


class NotPublished(CannotUndo):
    """Nothing of the plan was ever published, so there is nothing to bring back."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.found = found
        super().__init__(plan_id, f"it is {found}, and only a published plan has removed anything")


class NotUndoable(CannotUndo):
    """A plan of a kind that is not taken back."""


class UndoWindowPassed(CannotUndo):
    """`undo_window` has passed since the plan was published, by the ledger's clock."""

    def __init__(self, plan_id: str, *, published_at: str, ended_at: str, now: str) -> None:
        self.published_at, self.ended_at, self.now = published_at, ended_at, now
        super().__init__(plan_id, f"it was published at {published_at} and its undo_window ended at {ended_at}; it is {now} now")


class UndoSourceGone(CannotUndo):
    """What the plan removed is not in the table's history, or not in its files, any more."""


class LaterPlan(CannotUndo):
    """A plan that was published later builds on what this one removed."""

    def __init__(self, plan_id: str, later: str, reason: str) -> None:
        self.later = later
        super().__init__(plan_id, f"plan {later} came after it and {reason}")


class NameTaken(CannotUndo):
    """A deleted topic comes back under its own name, and another topic has it."""

    def __init__(self, plan_id: str, topic: str) -> None:
        self.topic = topic
        super().__init__(plan_id, f"another topic has the name {topic} now. It can be undone once that one is deleted")


class NotDeletable(BadInput):
    """Only topics of tables are deleted whole by a plan."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} lies in no table: it goes whole with its files, or its streams, once it is in lifecycle.toml no more. "
            "Nothing was changed."
        )


class NotUndone(BadInput):
    """Only a plan that was taken back has messages to release."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(
            f"plan {plan_id} was not undone, so none of its messages wait to be released. `lifecycle undo {plan_id}` undoes it."
        )


# Files and snapshots that may not go.


class OutsideTable(Refused):
    """A file is to be removed that does not lie below its table's location."""

    def __init__(self, location: str, name: str) -> None:
        self.location, self.name = location, name
        super().__init__(
            f"{name!r} is no file below {location}. Allowed: names relative to the table's location, without '.', '..' or empty steps. "
            "Nothing was removed."
        )


class SnapshotInUse(Refused):
    """A snapshot is to be expired that a branch or a tag still names."""

    def __init__(self, table: str, snapshot_id: int, ref: str) -> None:
        self.table, self.snapshot_id, self.ref = table, snapshot_id, ref
        super().__init__(
            f"table {table}: snapshot {snapshot_id} is where {ref!r} points. Nothing was expired; remove that branch or tag first."
        )


class NothingDeleted(BadInput):
    """A plan by which no topic is deleted now."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(
            f"plan {plan_id} {found}: there is no deleted topic of it to reclaim. `lifecycle topic list --deleted` names those that there are."
        )


class FilesLeft(Refused):
    """What a reclaim has begun that the ledger does not know cannot be ended while files are there: no plan names them."""

    def __init__(self, plan_id: str, topic: str, files: Sequence[str]) -> None:
        self.plan_id, self.topic, self.files = plan_id, topic, tuple(files)
        super().__init__(
            f"plan {plan_id} has begun to remove the deleted topic {topic} for good, and this ledger does not know it (was it restored from "
            f"before?), so nothing is removed by it. There still: {', '.join(files)}. Nothing reads these files any more: remove what lies "
            "in their folders by hand, and run this again."
        )


class UndoWindowOpen(Refused):
    """A deleted topic that can still be brought back, by the ledger's clock."""

    def __init__(self, plan_id: str, topic: str, *, until: str, now: str) -> None:
        self.plan_id, self.topic, self.until, self.now = plan_id, topic, until, now
        super().__init__(
            f"topic {topic}, deleted by plan {plan_id}, can be brought back until {until}; it is {now} now. Nothing of it goes before."
        )


# Requests of erasure, the secret that keeps their keys hidden, and what stands against the erasure of a key from a store.


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


class UnsupportedErasure(Refused):
    """A key cannot be erased from all of a topic, so nothing of it is."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: a key cannot be erased here: {reason}. Nothing was changed.")


class ErasureUnfinished(Refused):
    """Of what an erasure was to leave nothing, something is still there."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: the erasure has not ended: {reason}. Run it again: it goes on where it stopped.")


class InvalidReceipt(Refused):
    """What is kept as a receipt is none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the receipt is not one of an erasure: {reason}.")
