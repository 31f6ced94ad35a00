"""One topic: its log, its settings and where they come from, who reads it; how its newest compaction ended, what it did, and how far the view
reaches (CMP-10); its documents, what is stored of them, who has synchronised how far, and what a client gets (SNP-1 to SNP-9).

All of it follows from plans, outcomes and the tables' own metadata; nothing else is kept."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from itertools import groupby

from message_lifecycle.app.changes import standing
from message_lifecycle.app.documents import Described, Pulled
from message_lifecycle.app.documents import describe as describe_documents
from message_lifecycle.app.operations.registry import kind_of, named, preview
from message_lifecycle.app.rendering import Document
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.past_expiry import past_expiry
from message_lifecycle.app.views.plans import plan_view
from message_lifecycle.app.views.state import holds_view, runs, when
from message_lifecycle.app.views.status import last_compaction, topic_status
from message_lifecycle.model.document import Change, DocumentState, Synced
from message_lifecycle.model.errors import CompactedTableMissing, LifecycleError
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.instants import Instant, is_dead
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord, Staged
from message_lifecycle.model.plan_state import Standing
from message_lifecycle.model.setting_list import OWN_SETTINGS
from message_lifecycle.model.settings import BY_NAME, Policy, resolve
from message_lifecycle.model.topic import api_level, origin_of
from message_lifecycle.operations import document_reading
from message_lifecycle.operations.expiry import silent_at
from message_lifecycle.operations.snapshot_with_purge import silent_from

_RUNS_SHOWN = 10
_GOOD_ENDS = ("published", "no_op")
_MILLIS = 1000


def topic_page(s: Services, name: TopicName) -> Document:
    """Everything about one topic, now."""
    now = s.ledger.now()
    page = {
        **_described(s, name),
        "holds": holds_view(s, name),
        "status": topic_status(s, name),
        "runs": runs(s, name, limit=_RUNS_SHOWN),
    }
    if policy_of(s, name).of_documents:
        return page
    return {**page, "consumers": consumers_view(s, name), "bounds": plan_view(preview(s, name, as_of=now))["bounds"]}


def describe(s: Services, name: TopicName) -> Document:
    """Settings with their origin, partitions and end offsets; of a topic of documents these, and who has synchronised them."""
    described, policy = _described(s, name), policy_of(s, name)
    if policy.of_documents:
        return described
    return {**described, "past_expiry": past_expiry(s, name, policy, s.ledger.now())}


def _described(s: Services, name: TopicName) -> Document:
    topic = s.topics.describe(name)
    if topic.of_documents:
        return {
            "topic": str(name),
            "uuid": topic.uuid,
            "documents": documents_view(s, name),
            "settings": settings_view(resolve(topic=topic.settings, server=s.server)),
        }
    log = s.reader.log(name)
    view, missing = _compacted(s, name)
    return {
        "topic": str(name),
        "role": topic.role,
        "origin": None if (origin := origin_of(name, topic.settings)) is None else str(origin),
        "api_level": api_level(topic.settings),
        "uuid": topic.uuid,
        "view": topic.live_view,
        "snapshot_id": log.snapshot_id,
        "messages": sum(segment.rows for segment in log.segments),
        "bytes": sum(segment.size_bytes for segment in log.segments),
        "compacted": _view_facts(view),
        "compacted_missing": missing,
        "partitions": _partitions(log, view),
        "settings": settings_view(resolve(topic=topic.settings, server=s.server)),
    }


def altered_view(s: Services, name: TopicName, before: Policy) -> Document:
    """A topic that was made or altered, with the settings that are others than `before`, and what a run would do by them now."""
    described, after = describe(s, name), policy_of(s, name)
    then = dict(before.settings)
    changed = [
        {
            "setting": setting,
            "from": then[setting].value,
            "from_origin": then[setting].origin,
            "to": now.value,
            "to_origin": now.origin,
            "unit": BY_NAME[setting].unit,
        }
        for setting, now in after.settings
        if now != then[setting]
    ]
    return {**described, "changed": changed, "means": _means(s, name, after, described.get("past_expiry"))}


def _means(s: Services, name: TopicName, policy: Policy, past: Document | None) -> Document:
    """What a run would remove now, recorded nowhere; `messages` None: it cannot be told why, and the settings stand all the same."""
    try:
        would = preview(s, name, as_of=s.ledger.now(), work="snapshot_with_purge" if policy.of_documents else "message_cleaner")
    except LifecycleError as error:
        return {
            "messages": None,
            "would_remove": None,
            "held": None,
            "told": f"what a run would remove now is not known: {error.code}: {error}",
        }
    things, expected, held = "changes" if policy.of_documents else "messages", would.expected, sum(entry.rows for entry in would.held)
    told = [
        f"a run now would remove {expected.removed_rows:,} of {expected.rows_in:,} {things}"
        if expected.rows_in
        else f"it holds no {things} now"
    ]
    told += [f"{held:,} more are due and held"] if held else []
    told += [past["told"]] if past is not None and past["told"] is not None else []
    return {"messages": expected.rows_in, "would_remove": expected.removed_rows, "held": held, "told": "; ".join(told)}


def settings_view(policy: Policy) -> list[Document]:
    """Every effective setting: its value, unit, origin and meaning."""
    return [
        {
            "setting": name,
            "value": resolved.value,
            "unit": BY_NAME[name].unit,
            "origin": resolved.origin,
            "on_topic": BY_NAME[name].on_topic,
            "section": BY_NAME[name].section,
            "help": BY_NAME[name].help,
        }
        for name, resolved in policy.settings
    ]


def consumers_view(s: Services, name: TopicName) -> list[Document]:
    """Each reader's progress by partition, and when it falls silent and keeps nothing any more (EXP-6).

    A replica (TTL-6) and a consumer group of the store's own never fall silent."""
    now = s.ledger.now()
    policy = resolve(topic=s.topics.describe(name).settings, server=s.server)
    groups = () if s.groups is None else s.groups.progress(name)
    progress = [*s.ledger.consumers(name), *groups]
    if not progress:
        return []
    ends = s.reader.log(name).end_offsets
    found = []
    ordered = sorted(progress, key=lambda p: (p.consumer, p.partition))
    for consumer, group in groupby(ordered, key=lambda p: p.consumer):
        own = list(group)
        found.append(
            {
                "consumer": consumer,
                "replica": any(p.kind == "replica" for p in own),
                "group": any(p in groups for p in own),
                "pins": any(p.pins_at(now, policy.consumer_expiry_us) for p in own),
                "falls_silent_at": when(_alive_until(own, policy)),
                "consumer_expiry": policy["consumer_expiry"],
                "partitions": _progress(own, ends),
            }
        )
    return found


def _alive_until(own: Iterable[Progress], policy: Policy) -> Instant | None:
    """The last instant at which it keeps anything; None: always."""
    end = silent_at(own, policy)
    return None if end is None else Instant(end - 1)


def _progress(own: list[Progress], ends: Mapping[int, int]) -> list[Document]:
    # A reader may be registered before it has read anything.
    read = {p.partition: p.offset for p in own if p.offset >= 0}
    times = {p.partition: p.at for p in own}
    return [
        {
            "partition": partition,
            "offset": read.get(partition),
            "lag": end - 1 - read.get(partition, -1),
            "at": when(times.get(partition)),
        }
        for partition, end in sorted(ends.items())
    ]


def _partitions(log: LogState, view: ViewState | None) -> list[Document]:
    by_partition = {partition: list(group) for partition, group in groupby(log.segments, key=lambda segment: segment.partition)}
    found = []
    for partition, end in sorted(log.end_offsets.items()):
        segments = by_partition.get(partition, [])
        oldest = [segment.oldest_at for segment in segments if segment.oldest_at is not None]
        newest = [segment.newest_at for segment in segments if segment.newest_at is not None]
        found.append(
            {
                "partition": partition,
                "start_offset": segments[0].base_offset if segments else end,
                "end_offset": end,
                "horizon": None if view is None else view.reach(partition),
                "messages": sum(segment.rows for segment in segments),
                "bytes": sum(segment.size_bytes for segment in segments),
                "segments": len(segments),
                "oldest_at": when(min(oldest, default=None)),
                "newest_at": when(max(newest, default=None)),
            }
        )
    return found


def compaction_status(s: Services, name: TopicName) -> Document:
    """`status`: NOT_RUN, RUNNING, SUCCESS or ERROR, with `message` in words; figures are the newest run's, null where it has none.

    `lag`: offsets past the horizon; the messages there may be fewer. A view that is lost is an ERROR. Raises UnknownTopic."""
    s.topics.describe(name)
    ended = last_compaction(s, name)
    under_way = s.ledger.open_plan(name)
    record = under_way if under_way is not None and kind_of(under_way.plan) is named("compaction") else None
    (view, missing), ends = _compacted(s, name), s.reader.end_offsets(name)
    if missing is None and view is None and s.ledger.accepted_view(name) is not None:
        missing = f"its view was published, and its table is not there any more; to begin anew: lifecycle compact {name} --anew"
    status, message = ("ERROR", missing) if missing is not None else _compaction_status(s, record, None if ended is None else ended[1])
    if record is None and ended is not None and ended[1].plan_id is not None:
        record = s.ledger.record(ended[1].plan_id)
    return {
        "topic": str(name),
        "status": status,
        "message": message,
        "plan_id": None if record is None else record.plan.plan_id,
        "as_of": when(ended[1].as_of if record is None and ended is not None else None if record is None else record.plan.as_of),
        "ended_at": None if ended is None or status == "RUNNING" else when(ended[0]),
        "removed": None if ended is None or status != "SUCCESS" else dict(ended[1].removed),
        **_figures(None if record is None else record.staged),
        "view": _view_facts(view),
        "partitions": [
            {"partition": partition, "end_offset": end, **_reach(view, partition, end)} for partition, end in sorted(ends.items())
        ],
    }


def _compacted(s: Services, name: TopicName) -> tuple[ViewState | None, str | None]:
    """The view as it is, and why it cannot be looked at: a topic's page is worth showing without it."""
    try:
        return s.stores.view.view(name), None
    except CompactedTableMissing as missing:
        return None, str(missing)


def _view_facts(view: ViewState | None) -> Document | None:
    if view is None:
        return None
    return {
        "snapshot_id": view.snapshot_id,
        "messages": view.rows,
        "superseded_in_files": view.hidden_rows,
        "bytes": view.size_bytes,
        "due_at": when(view.due_at),
    }


def _reach(view: ViewState | None, partition: int, end: int) -> Document:
    horizon = None if view is None else view.reach(partition)
    return {"horizon": horizon, "lag": end if horizon is None else end - 1 - horizon}


def _compaction_status(s: Services, under_way: PlanRecord | None, ended: Outcome | None) -> tuple[str, str]:
    if under_way is not None:
        plan_id = under_way.plan.plan_id
        if ended is not None and ended.plan_id == plan_id:
            return "ERROR", f"{ended.name}: {ended.detail}"
        stands = standing(s, under_way)
        if stands.is_question:
            return "RUNNING", f"plan {plan_id} waits for a person: lifecycle approve {plan_id[:12]} --by NAME --why WHY"
        if stands is Standing.RECENT:
            return "RUNNING", f"plan {plan_id} is {under_way.state.word}"
        return "ERROR", f"its run ended while plan {plan_id} was {under_way.state.word}; the next run takes its place"
    if ended is None:
        return "NOT_RUN", "nothing was compacted yet"
    if ended.name in _GOOD_ENDS:
        return "SUCCESS", "nothing was new" if ended.name == "no_op" else f"plan {ended.plan_id} is published"
    return "ERROR", f"{ended.name}: {ended.detail}"


def _figures(staged: Staged | None) -> Document:
    """Of the work itself. Rates are bytes by the whole time of the work, reading and writing alike (CMP-11)."""
    view = None if staged is None else staged.view
    if view is None:
        names = ("rows_in", "rows", "bytes_read", "bytes_written", "duration_seconds", "read_bytes_per_second", "write_bytes_per_second")
        return {**dict.fromkeys(names), "engine": None}
    seconds = view.took_ms / _MILLIS if view.took_ms else None
    return {
        "rows_in": view.view_rows + view.tail_rows,
        "rows": view.rows,
        "bytes_read": view.bytes_read,
        "bytes_written": view.bytes_written,
        "duration_seconds": seconds,
        "read_bytes_per_second": None if seconds is None else round(view.bytes_read / seconds),
        "write_bytes_per_second": None if seconds is None else round(view.bytes_written / seconds),
        "engine": view.engine,
    }


def documents_view(s: Services, name: TopicName) -> Document:
    """The topic in figures, and each document, by name. Raises UnknownTopic, NotADocumentTopic."""
    own, now, tables = s.ledger.own_settings(name), s.ledger.now(), s.documents.tables(name)
    found = describe_documents(s, name)
    return {
        "fold": policy_of(s, name).fold,
        "changes_uuid": tables.changes_uuid,
        "changes_id": tables.changes_id,
        "snapshots_uuid": tables.snapshots_uuid,
        "snapshots_id": tables.snapshots_id,
        "changes": sum(_stored(document.state) for document in found),
        "snapshots": sum(len(document.state.snapshots) for document in found),
        "clients": sum(len(document.clients) for document in found),
        "purged": sum(document.state.epoch > 0 for document in found),
        "documents": [document_view(document, now) for document in found],
        "own_settings": [*_own_settings("user", own.users), *_own_settings("document", own.documents)],
    }


def document_view(found: Described, now: Instant, *, settings: bool = False) -> Document:
    """`first`: the first change that is there; `lowest_synced`: of the clients that keep changes, null where none does."""
    state = found.state
    clients = [_client(row, state.seq, found.policy, now) for row in found.clients]
    return {
        "document": state.document,
        "owner": found.owner,
        "seq": state.seq,
        "first": state.first,
        "changes": _stored(state),
        "snapshots": list(state.snapshots),
        "epoch": state.epoch,
        "lowest_synced": min((client["server_seq"] for client in clients if client["keeps"]), default=None),
        "clients": clients,
        **({"settings": {setting: found.policy[setting] for setting in OWN_SETTINGS}} if settings else {}),
    }


def pulled_view(pulled: Pulled, fold: str | None) -> Document:
    return {
        "document": pulled.document,
        "seq": pulled.seq,
        "epoch": pulled.epoch,
        "snapshot": None if pulled.snapshot is None else {"server_seq": pulled.snapshot.server_seq, "state": pulled.state},
        "changes": [_change(change, fold) for change in pulled.changes],
    }


def history_entry_view(entry: tuple[int, object]) -> Document:
    """One of `documents.history`."""
    seq, state = entry
    return {"server_seq": seq, "state": state}


def _change(change: Change, fold: str | None) -> Document:
    return {"server_seq": change.server_seq, "client": change.client, "at": when(change.at), "payload": _payload(change.payload, fold)}


def _payload(payload: bytes, fold: str | None) -> object:
    """As `lifecycle document add` takes it; what is stored and is no JSON is shown as its bytes, not hidden."""
    try:
        if fold != "yjs":
            return json.loads(payload)
    except ValueError:
        pass
    return {"base64": base64.b64encode(payload).decode()}


def not_shown_view(state: DocumentState, start: int) -> Document | None:
    """What `history` cannot show of the changes from `start` on that are stored, and the first that it can (None: none of them): what came
    before them was purged, so no state is there that they could be applied to (SNP-8). None: all can be shown."""
    shown, first = document_reading.history(state, start), state.first
    if first is None or start > state.seq:
        return None
    stored, first_shown = max(start, first), shown.first if shown.last else None
    if stored == first_shown:
        return None
    return {"from": stored, "to": state.seq if first_shown is None else first_shown - 1, "first_shown": first_shown}


def _stored(state: DocumentState) -> int:
    return 0 if state.first is None else state.seq - state.first + 1


def _client(row: Synced, seq: int, policy: Policy, now: Instant) -> Document:
    end = silent_from(row, policy)
    return {
        "client": row.client,
        "server_seq": row.server_seq,
        "lag": seq - row.server_seq,
        "at": when(row.at),
        "falls_silent_at": when(None if end is None else Instant(end - 1)),  # the last instant at which it keeps anything, as of consumers
        "keeps": end is None or not is_dead(end, now),
    }


def _own_settings(level: str, of: Mapping[str, Mapping[str, object]]) -> list[Document]:
    return [
        {"level": level, "name": name, "setting": setting, "value": value}
        for name, settings in sorted(of.items())
        for setting, value in sorted(settings.items())
    ]
