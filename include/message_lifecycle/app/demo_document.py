"""A document's life, in `make demo`: 18,335 real edits come in, two clients synchronise, what both have goes, the text stays.

The DAG takes no change that the slower client lacks; the text is then read as a new client reads it, and held to the one that whoever
recorded the edits ended with.
"""

from __future__ import annotations

from typing import Any

from message_lifecycle.app import documents
from message_lifecycle.app.editing_trace import TRANSACTIONS, editing_trace
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.local.progress import Progress
from message_lifecycle.model.errors import EpochMismatch, LifecycleError
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value

COMPONENTS = TopicName(stream="demo", topic="components")
SETTINGS: dict[str, Value] = {"fold": "text_splice", "snapshot_with_purging_changes": True}
DOCUMENT = "game.svelte"
LAPTOP, PHONE = "laptop", "phone"
PHONE_HAS = 12_000
"""How far the slower client has come: nothing from there on may go."""


class DocumentDiffers(LifecycleError):
    """The document's life did not come out as it must; the message says where."""


def land(s: Services, progress: Progress) -> None:
    """Make the topic, take the edits in, and let two clients synchronise; the second time all is there and nothing is added."""
    if COMPONENTS in s.topics.list(COMPONENTS.stream):
        progress.say(f"Topic {COMPONENTS} is there already")
    else:
        with progress.step(f"Topic {COMPONENTS}"):
            create_topic(s, COMPONENTS, settings=SETTINGS)
    state = next(iter(s.documents.states(COMPONENTS, s.documents.tables(COMPONENTS), only=(DOCUMENT,))), None)
    there = 0 if state is None else state.seq
    with progress.step("A program text as it was typed, edit by edit (Joseph Gentle, editing-traces, CC BY 4.0)"):
        missing = editing_trace(document=DOCUMENT, client=LAPTOP).changes[there:]
        if missing:
            documents.add_changes(s, COMPONENTS, missing)
    progress.say(f"  {len(missing):,} changes added{'' if missing else ' (they are all there already)'}")
    if there < TRANSACTIONS:
        for client, has in ((LAPTOP, TRANSACTIONS), (PHONE, PHONE_HAS)):
            documents.sync(s, COMPONENTS, DOCUMENT, client=client, server_seq=has, at=s.ledger.now())
        progress.say(f"  {LAPTOP} has them all, {PHONE} those up to {PHONE_HAS:,}")


def report(s: Services, progress: Progress, outcomes: list[dict[str, Any]]) -> None:
    """What the DAG did, what is left, and whether the text is the one that it must be. Raises DocumentDiffers."""
    progress.say("")
    last = next((outcome for _, outcome in s.ledger.history(COMPONENTS, operations=["snapshot_with_purge"]) if outcome.plan_id), None)
    (found,) = documents.describe(s, COMPONENTS, DOCUMENT)
    if last is None or last.name not in ("published", "no_op") or not found.state.snapshots:
        raise DocumentDiffers(
            f"{COMPONENTS}: no snapshot was made: {'; '.join(outcome['detail'] for outcome in outcomes) or 'the run was idle'}"
        )
    counts = ", ".join(f"{count:,} by {reason}" for reason, count in last.removed) or "nothing"
    progress.say(f"{COMPONENTS}: {last.name}, removed {counts}, as of {format_instant(last.as_of)}")
    new = any(outcome["plan_id"] == last.plan_id for outcome in outcomes)
    ended = last.detail or "verified" if new else "of an earlier run; nothing was due since"
    progress.say(f"  plan {last.plan_id}, snapshot {last.snapshot_id}, {ended}")
    state = found.state
    stored = "no change" if state.first is None else f"changes {state.first:,} to {state.seq:,}"
    progress.say(
        f"  document {DOCUMENT}: {stored} are left, snapshots at {', '.join(f'{seq:,}' for seq in state.snapshots)}, epoch {state.epoch}"
    )
    _check_clients(s, progress)
    _check_text(s, progress)


def _check_clients(s: Services, progress: Progress) -> None:
    """The slower client can go on; one that was away while changes went is told so, and gets no hole."""
    pinned = min((row.server_seq for row in s.ledger.synced(COMPONENTS, DOCUMENT)), default=None)
    if pinned is not None:
        documents.pull(s, COMPONENTS, DOCUMENT, client=PHONE, client_seq=pinned)
        progress.say(f"  the slowest client goes on from {pinned:,}")
    try:
        documents.pull(s, COMPONENTS, DOCUMENT, client="tablet", client_seq=100, epoch=0)
    except EpochMismatch as told:
        progress.say(f"  a tablet that was away is told: EpochMismatch, epoch {told.brought} against {told.epoch}; it attaches again")
        return
    raise DocumentDiffers(f"{COMPONENTS}: a client that stood on purged changes was let go on")


def _check_text(s: Services, progress: Progress) -> None:
    """What a new client gets, against the text that the recording ends with."""
    got = documents.attach(s, COMPONENTS, DOCUMENT, client="visitor")
    entries = list(documents.history(s, COMPONENTS, DOCUMENT, start=got.seq))
    wanted = editing_trace(document=DOCUMENT, client=LAPTOP).text
    if not entries or entries[-1] != (TRANSACTIONS, wanted):
        raise DocumentDiffers(f"{COMPONENTS}: the text of {DOCUMENT} at change {got.seq:,} is not the one that its edits end in")
    if got.snapshot is not None and got.snapshot.server_seq == TRANSACTIONS and got.state != wanted:
        raise DocumentDiffers(f"{COMPONENTS}: the snapshot of {DOCUMENT} at {TRANSACTIONS:,} is another text than its edits give")
    progress.say(f"  its text, {len(wanted):,} characters, is the one that the {TRANSACTIONS:,} edits end in")
