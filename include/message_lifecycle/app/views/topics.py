"""One topic: its log or its documents, its settings with their origins, and its readers.

The figures follow from plans, outcomes and the tables' own metadata. No other state is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.operations.topics import undo_until
from message_lifecycle.app.rendering import ABSENT, Block, Count, Line, Notes, Number, Size, Table, View, each, hidden, source
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.compaction import CompactedView, view_state
from message_lifecycle.app.views.documents import DocumentsView, documents_view
from message_lifecycle.app.views.over_time import Expiries, Growth, SizeAt, expiries, topic_growth
from message_lifecycle.app.views.past_expiry import PastExpiry, past_expiry_view
from message_lifecycle.app.views.plans import BoundView
from message_lifecycle.app.views.state import HoldView, OutcomeView, holds_view, runs, when
from message_lifecycle.app.views.status import ObligationView, StatusView, status, topic_status
from message_lifecycle.app.wording import NO_TOPICS, count, setting_text, unit_text
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_span
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount, short, size
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME, Policy, resolve
from message_lifecycle.model.tables import DeletedTopic
from message_lifecycle.model.topic import api_level, origin_of
from message_lifecycle.operations.expiry import silent_at

_RUNS_SHOWN = 10


class DueTopic(View):
    """A topic that is due or not, with the reason."""

    topic: TopicName
    due: bool
    reason: str

    table = Table(
        columns={"": lambda one: "due" if one.due else "-", "topic": "topic", "why": "reason"}, wrap=("topic", "why"), none=NO_TOPICS
    )


class DueView(View):
    """Which topics have something due."""

    as_of: Instant
    topics: tuple[DueTopic, ...]

    def screen_blocks(self) -> Iterator[Block]:
        yield DueTopic.table.of(self.topics)


class PartitionView(View):
    """One partition of a log. `horizon`: the last compacted offset."""

    partition: Number
    start_offset: Number
    end_offset: Number
    horizon: Number | None
    messages: Count
    bytes: Size
    segments: Count
    oldest_at: Instant | None
    newest_at: Instant | None

    table = Table(
        columns={
            "partition": "partition", "first": "start_offset", "horizon": "horizon", "end": "end_offset", "messages": "messages",
            "segments": "segments", "oldest": "oldest_at", "newest": "newest_at",
        },
        wide=("oldest",), absent={"horizon": "-"}, title="Partitions",
    )  # fmt: skip


class SettingView(View):
    """An effective setting: its value, unit, origin and meaning."""

    setting: str
    value: Value | None
    unit: str
    origin: str
    on_topic: bool
    section: str
    help: str

    table = Table(
        columns={
            "setting": "setting", "value": lambda one: setting_text(one.value, one.unit), "unit": lambda one: unit_text(one.unit),
            "origin": "origin", "scope": lambda one: "" if one.on_topic else "server only",
        },
        right=("value",), wide=("scope",), title="Settings",
    )  # fmt: skip


class ChangedSetting(View):
    """A setting whose effective value was changed."""

    setting: str
    from_: Value | None
    from_origin: str
    to: Value | None
    to_origin: str
    unit: str

    table = Table(
        columns={
            "setting": "setting", "from": lambda one: setting_text(one.from_, one.unit), "to": lambda one: setting_text(one.to, one.unit), "unit": lambda one: unit_text(one.unit),
            "origin": "to_origin",
        },
        right=("from", "to"), none="no setting changed",
    )  # fmt: skip


class RunNow(View):
    """The removal by a run that would be made now. The settings were changed, even if the figures are unknown."""

    messages: Count | None
    """None: unknown."""
    would_remove: Count | None
    held: Count | None
    text: str
    """The figures as a sentence, or the reason why they are unknown."""


class TopicView(View):
    """A topic of messages or of `documents`, with its settings.

    Args:
        compacted_missing: The reason why the compacted view cannot be read.
        asks: Settings that would remove more than a person has accepted.
    """

    topic: TopicName
    uuid: str
    documents: DocumentsView = ABSENT
    role: str = ABSENT
    origin: TopicName | None = ABSENT
    api_level: Number = ABSENT
    view: str | None = ABSENT
    snapshot_id: Number | None = ABSENT
    messages: Count = ABSENT
    bytes: Size = ABSENT
    compacted: CompactedView | None = ABSENT
    compacted_missing: str | None = ABSENT
    partitions: tuple[PartitionView, ...] = ABSENT
    settings: tuple[SettingView, ...]
    past_expiry: PastExpiry = ABSENT
    asks: Sequence[str] = ABSENT

    def question_blocks(self) -> Iterator[Block]:
        if self.asks:
            tightened = (
                f"{', '.join(self.asks)}: stricter than the last approved value. The next run that removes something needs approval."
            )
            accept = f"Approve now: lifecycle topic alter {self.topic} --accept WHY --by NAME"
            yield Notes([tightened, accept], style="yellow", title="Approval required")


class DescribedTopic(TopicView):
    """A topic as `topic describe` shows it, with its duties.

    Args:
        every: Show settings with their built-in values on the screen, too. JSON always has every setting.
    """

    ok: bool
    problems: Sequence[str]
    obligations: Sequence[ObligationView]
    every: bool = hidden(False)  # the default of a field that JSON leaves out

    def _compacted(self) -> str | None:
        if self.compacted is None:
            return self.compacted_missing
        return f"{count(self.compacted.messages)}, {size(self.compacted.bytes)}"

    def screen_blocks(self) -> Iterator[Block]:
        if self.documents:
            yield from self.documents.screen_blocks()
        else:
            yield Line(str(self.topic), style="bold")
            yield {
                "role": self.role,
                "origin": str(self.origin or ""),
                "API level": str(self.api_level),
                "table": self.uuid,
                "live view": self.view,
                "messages": f"{count(self.messages)}, {size(self.bytes)}",
                "past expiry": self.past_expiry.text,
                "compacted view": self._compacted(),
            }
        yield replace(ObligationView.table, title="Pending work").of(self.obligations)
        yield Notes(self.problems, style="red")
        shown = [one for one in self.settings if self.every or one.origin != "built in"]
        yield SettingView.table.of(shown)
        if others := len(self.settings) - len(shown):
            yield Line(f"{others} more settings have their built-in values: lifecycle topic describe {self.topic} --all", style="dim")
        if not self.documents:
            yield PartitionView.table.of(self.partitions)
        yield from self.question_blocks()


class AlteredTopic(TopicView):
    """A topic that was made or altered, with the changed settings and the removal by a run that would be made now."""

    changed: Sequence[ChangedSetting]
    means: RunNow

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(str(self.topic), style="bold")
        yield ChangedSetting.table.of(self.changed)
        yield Line(f"{self.means.text[0].upper()}{self.means.text[1:]}.", wraps=True)
        yield Line(f"Every setting: lifecycle topic describe {self.topic} --all", style="dim")
        yield from self.question_blocks()


class ProgressView(View):
    """A consumer's progress in one partition. `offset` is None if the consumer has read nothing yet."""

    partition: Number
    offset: Number | None
    lag: Count
    at: Instant | None
    reader: str = hidden("")

    table = Table(
        columns={"consumer": "reader", "partition": "partition", "processed": "offset", "behind": "lag", "last commit": "at"},
        wrap=("consumer",), absent={"processed": "nothing yet"},
    )  # fmt: skip


class ConsumerView(View):
    """A reader. `pins` is True while the topic keeps messages for it, until `falls_silent_at`. None: for ever."""

    consumer: str
    replica: bool
    group: bool
    pins: bool
    falls_silent_at: Instant | None
    consumer_expiry: int
    partitions: tuple[ProgressView, ...]

    @property
    def keeps(self) -> str:
        if self.replica:
            return f"{self.consumer} keeps messages that it has not copied. A replica never falls silent"
        if self.group:
            return f"{self.consumer} keeps messages that it has not acknowledged. A Redis group never falls silent"
        without = f"{format_span(self.consumer_expiry)} without a commit (consumer_expiry)"
        if self.falls_silent_at is None and self.pins:
            return f"{self.consumer} keeps messages that it has not processed. The time of a commit is unknown, so it never falls silent"
        at = when(self.falls_silent_at)
        if not self.pins:
            return f"{self.consumer} keeps nothing: silent since {at}, after {without}"
        return f"{self.consumer} keeps messages that it has not processed, until {at}: {without}"


class TopicPage(TopicView):
    """A topic as its page shows it."""

    holds: Sequence[HoldView]
    status: StatusView
    runs: Sequence[OutcomeView]
    consumers: Sequence[ConsumerView] = ABSENT
    bounds: Sequence[BoundView] = ABSENT
    expiries: Expiries | None = ABSENT
    growth: Growth | None = ABSENT


def topic_page(s: Services, name: TopicName) -> TopicPage:
    """Return everything about one topic, now."""
    now, found = s.ledger.now(), _described(s, name)
    beside: dict[str, object] = {"holds": holds_view(s, name), "status": topic_status(s, name), "runs": runs(s, name, limit=_RUNS_SHOWN)}
    if not found.documents:
        beside |= {
            "consumers": consumers_view(s, name),
            "bounds": each(BoundView)(preview(s, name, as_of=now).bounds),
            "expiries": expiries(s.reader.log(name).segments, policy_of(s, name), now=now),
            "growth": topic_growth(s, name, SizeAt(at=now, messages=found.messages, bytes=found.bytes)),
        }
    return TopicPage.of(found, **beside)


def describe(s: Services, name: TopicName) -> TopicView:
    """Return the settings with their origin, partitions and end offsets; of a topic of documents these, and who has synchronised them."""
    found = _described(s, name)
    return found if found.documents else replace(found, past_expiry=past_expiry_view(s, name, policy_of(s, name), s.ledger.now()))


def described_topic(s: Services, name: TopicName, *, every: bool = False) -> DescribedTopic:
    found, (judged,) = describe(s, name), status(s, [name])
    return DescribedTopic.of(found, ok=judged.ok, problems=judged.problems, obligations=judged.obligations or (), every=every)


def _described(s: Services, name: TopicName) -> TopicView:
    topic = s.topics.describe(name)
    policy = resolve(topic=topic.settings, server=s.server)
    settings = tuple(
        SettingView.of(BY_NAME[setting], setting=setting, value=now.value, origin=now.origin) for setting, now in policy.settings
    )
    if topic.has_documents:
        return TopicView(topic=name, uuid=topic.uuid, documents=documents_view(s, name), settings=settings)
    log = s.reader.log(name)
    view, missing = view_state(s, name)
    return TopicView(
        topic=name,
        role=topic.role,
        origin=origin_of(name, topic.settings),
        api_level=api_level(topic.settings),
        uuid=topic.uuid,
        view=topic.live_view,
        snapshot_id=log.snapshot_id,
        messages=sum(segment.rows for segment in log.segments),
        bytes=sum(segment.size_bytes for segment in log.segments),
        compacted=None if view is None else CompactedView.of(view),
        compacted_missing=missing,
        partitions=tuple(_partitions(log, view)),
        settings=settings,
    )


def altered_view(s: Services, name: TopicName, before: Policy, asks: Sequence[str] = ABSENT) -> AlteredTopic:
    """Return a topic that was made or altered; `before`: the settings until then."""
    described, after = describe(s, name), policy_of(s, name)
    then = dict(before.settings)
    changed = [
        ChangedSetting(
            setting=setting,
            from_=then[setting].value,
            from_origin=then[setting].origin,
            to=now.value,
            to_origin=now.origin,
            unit=BY_NAME[setting].unit,
        )
        for setting, now in after.settings
        if now != then[setting]
    ]
    return AlteredTopic.of(described, changed=changed, means=_preview_now(s, name, after, described.past_expiry), asks=asks)


def _preview_now(s: Services, name: TopicName, policy: Policy, past: PastExpiry) -> RunNow:
    try:
        would = preview(s, name, as_of=s.ledger.now(), work="snapshot_with_purge" if policy.has_documents else "message_cleaner")
    except LifecycleError as error:
        unknown = f"the effect of a run now is unknown: {error.code}: {error}"
        return RunNow(messages=None, would_remove=None, held=None, text=unknown)
    things, expected, held = "changes" if policy.has_documents else "messages", would.expected, sum(entry.rows for entry in would.held)
    texts = [
        f"a run now would remove {expected.removed_rows:,} of {amount(expected.rows_in, things)}"
        if expected.rows_in
        else f"it has no {things}"
    ]
    texts += [f"{held:,} more {'is' if held == 1 else 'are'} due, but on hold"] if held else []
    texts += [past.text] if past and past.text is not None else []
    return RunNow(messages=expected.rows_in, would_remove=expected.removed_rows, held=held, text=". ".join(texts))


def consumers_view(s: Services, name: TopicName) -> list[ConsumerView]:
    """Return each reader's progress by partition, and when it falls silent and keeps nothing any more (EXP-6).

    A replica (TTL-6) and a consumer group of the store's own never fall silent.
    """
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
        replica = any(p.kind == "replica" for p in own)
        found.append(
            ConsumerView(
                consumer=consumer,
                replica=replica,
                group=any(p in groups for p in own),
                pins=any(p.pins_at(now, policy.consumer_expiry_us) for p in own),
                falls_silent_at=_keeps_messages_until(own, policy),
                consumer_expiry=policy.consumer_expiry_us // MICROS_PER_SECOND,
                partitions=_progress(f"{consumer} (replica)" if replica else consumer, own, ends),
            )
        )
    return found


def _keeps_messages_until(own: Iterable[Progress], policy: Policy) -> Instant | None:
    """Return the last instant when the reader keeps messages. None: it keeps them for ever."""
    end = silent_at(own, policy)
    return None if end is None else Instant(end - 1)


def _progress(reader: str, own: list[Progress], ends: Mapping[int, int]) -> tuple[ProgressView, ...]:
    # A reader may be registered before it has read anything.
    read = {p.partition: p.offset for p in own if p.offset >= 0}
    times = {p.partition: p.at for p in own}
    return tuple(
        ProgressView(partition=at, offset=read.get(at), lag=end - 1 - read.get(at, -1), at=times.get(at), reader=reader)
        for at, end in sorted(ends.items())
    )


def _partitions(log: LogState, view: ViewState | None) -> Iterator[PartitionView]:
    by_partition = {partition: list(group) for partition, group in groupby(log.segments, key=lambda segment: segment.partition)}
    for partition, end in sorted(log.end_offsets.items()):
        segments = by_partition.get(partition, [])
        yield PartitionView(
            partition=partition,
            start_offset=segments[0].base_offset if segments else end,
            end_offset=end,
            horizon=None if view is None else view.reach(partition),
            messages=sum(segment.rows for segment in segments),
            bytes=sum(segment.size_bytes for segment in segments),
            segments=len(segments),
            oldest_at=min((segment.oldest_at for segment in segments if segment.oldest_at is not None), default=None),
            newest_at=max((segment.newest_at for segment in segments if segment.newest_at is not None), default=None),
        )


class DeletedView(View):
    """A deleted topic, and until when its deletion can be undone."""

    topic: TopicName
    plan_id: str
    deleted_at: Instant
    undo_until: Instant
    undoable: bool
    messages: Count = source("rows")
    bytes: Size = source("size_bytes")
    tables: tuple[str, ...] = source(make=lambda tables: tuple(one.table or "log" for one in tables))

    table = Table(
        columns={
            "topic": "topic", "plan": lambda one: short(one.plan_id), "deleted": "deleted_at", "undo until": "undo_until",
            "now": lambda one: "can be undone" if one.undoable else "can be reclaimed", "messages": "messages", "size": "bytes",
        },
        none="no deleted topics",
    )  # fmt: skip


def deleted_view(s: Services, topic: DeletedTopic) -> DeletedView:
    until = undo_until(s, topic)
    return DeletedView.of(topic, undo_until=until, undoable=s.ledger.now() < until)


def deleted_blocks(found: Sequence[DeletedView]) -> Iterator[Block]:
    yield DeletedView.table.of(found)
    if not all(topic.undoable for topic in found):
        yield "Reclaim: lifecycle reclaim run --deleted PLAN --by NAME --why WHY"
