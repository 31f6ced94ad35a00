"""Run a scenario: the same plan, stage, gate, publish and verify as production, on small data that the file states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from message_lifecycle.app import steps
from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import progress_of, read
from message_lifecycle.app.scenario import MakeWorld, World, verbs
from message_lifecycle.app.scenario.file import (
    AppendedMessage,
    CopyStep,
    DeleteStep,
    ExpectStep,
    ReadStep,
    RunStep,
    Scenario,
    Step,
)
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.sparing import horizons_of
from message_lifecycle.app.topics import alter_topic, copy_topic, create_topic
from message_lifecycle.app.wording import text_of
from message_lifecycle.model.errors import InvalidScenario, LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NOTHING, Message, NewMessage, is_marker, offsets_of
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.outcome import Outcome, PlanRecord
from message_lifecycle.model.setting_list import Value, check_messages
from message_lifecycle.model.settings import server_settings, topic_changes, topic_settings
from message_lifecycle.model.topic import origin_of, store_options
from message_lifecycle.operations.admission import ERASED, Refusal

Position = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One line of `--output json`."""

    file: str
    id: str
    step: int
    verb: str
    ok: bool
    found: dict[str, object]
    differences: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _LastResult:
    """The result of the previous step, for expectations to check."""

    verb: str = "load"
    topic: TopicName | None = None
    error: LifecycleError | None = None
    found: dict[str, object] = field(default_factory=dict)


class ScenarioRun:
    """One scenario on one world, step by step."""

    def __init__(self, scenario: Scenario, make_world: MakeWorld, *, file: str) -> None:
        self._scenario, self._make_world, self._file = scenario, make_world, file
        self._world: World | None = None
        self._several = any(message.partition for step in scenario.steps for message in step.append or ())
        self._as_of: Instant | None = None
        self._last = _LastResult()
        self._quarantined: dict[TopicName, int] = {}
        self._plans: dict[int, str] = {}

    def results(self) -> Iterator[StepResult]:
        """Every step's result, until one fails that the next does not expect."""
        try:
            yield from self._results()
        finally:
            if self._world is not None:
                self._world.close()

    def _results(self) -> Iterator[StepResult]:
        self._attempt("load", None, self._set_up)
        for index, step in enumerate(self._scenario.steps):
            if step.expect is not None:
                differences = tuple(self._differences(index, step.expect, step))
                yield self._step_result(index, "expect", differences)
                self._last.error = None
                continue
            if self._last.error is not None:
                break
            self._attempt(step.verb, step, lambda step=step: self._run_step(step))  # type: ignore[misc]  # binds this turn's step
            plan_id = self._last.found.get("plan_id")
            if isinstance(plan_id, str):
                self._plans[index] = plan_id
            unexpected = self._last.error is not None and not self._expects_error(index + 1)
            yield self._step_result(index, step.verb, (f"error: {self._last.error}",) if unexpected else ())
            if unexpected:
                return
        if self._last.error is not None:
            yield self._step_result(len(self._scenario.steps), self._last.verb, (f"error: {self._last.error}",))

    def _step_result(self, index: int, verb: str, differences: tuple[str, ...]) -> StepResult:
        return StepResult(
            file=self._file, id=self._scenario.id, step=index, verb=verb, ok=not differences,
            found=self._last.found, differences=differences,
        )  # fmt: skip

    def _expects_error(self, index: int) -> bool:
        following = self._scenario.steps[index : index + 1]
        return bool(following and following[0].expect is not None and following[0].expect.error)

    def _attempt(self, verb: str, step: Step | None, do: Callable[[], dict[str, object]]) -> None:
        self._last = _LastResult(verb=verb, topic=None if step is None else self._topic(step))
        try:
            self._last.found = do()
        except InvalidScenario:
            raise
        except LifecycleError as error:
            self._last.error = error
            self._last.found = {"error": error.code, "message": str(error)}

    # The verbs

    def _set_up(self) -> dict[str, object]:
        server = server_settings(self._scenario.server, where="server")
        options = store_options(self._scenario.store, where="store")
        own = {self._scenario.topic: self._scenario.config, **self._scenario.topics}
        checked = {name: topic_settings(config, where=f"config of {name}") for name, config in own.items()}
        for name in own:
            self._name(name)  # a name that is not valid is found before anything is made
        partitions = 1 + max((m.partition for step in self._scenario.steps for m in step.append or ()), default=0)
        self._world = world = self._make_world(server, options)
        for name in _origins_first(checked):
            create_topic(world.services, self._name(name), partitions=partitions, settings=checked[name])
        return {"topics": sorted(own)}

    def _run_step(self, step: Step) -> dict[str, object]:
        name = self._topic(step)
        if step.append is not None:
            return self._append(name, step.append)
        if step.seal is not None:
            self._check_messages(name)
            self.world.writer.seal(name, step.seal.partition)
        elif step.commit is not None:
            at = None if step.commit.at is None else Instant(step.commit.at)
            ends = self.world.services.reader.log(name).end_offsets
            self.world.services.ledger.commit(
                name,
                step.commit.consumer,
                step.commit.partition,
                step.commit.offset,
                at,
                end_offset=ends.get(step.commit.partition, 0),
            )
        elif step.copy_ is not None:
            return self._copy(step.copy_)
        elif step.configure is not None:
            of_topic = verbs.configure(self.world.services, name, step.configure)
            if of_topic:
                alter_topic(self.world.services, name, topic_changes(of_topic, where="configure"))
        elif step.foreign_delete is not None:
            self._check_messages(name)
            self.world.writer.foreign_delete(name, [verbs.position_of(entry) for entry in step.foreign_delete.offsets])
        elif step.corrupt is not None:
            if self.world.damage is None:
                raise InvalidScenario("corrupt", step.corrupt.line, "a verb of stores that keep lines in files: json_file, rotating_file")
            self.world.damage(name, step.corrupt.line, step.corrupt.text)
        elif step.delete is not None:
            return self._delete(name, step.delete)
        elif step.change is not None:
            return verbs.change(self.world.services, name, step.change)
        elif step.sync is not None:
            return verbs.sync(self.world.services, name, step.sync)
        elif step.detach is not None:
            return verbs.detach(self.world.services, name, step.detach)
        elif step.hold is not None:
            return verbs.hold(self.world.services, name, step.hold)
        elif step.release is not None:
            return verbs.release(self.world.services, name, step.release)
        elif step.run is not None:
            return self._run(name, step.run)
        elif step.read is not None:
            return self._read(name, step.read)
        return {}

    def _append(self, name: TopicName, messages: list[AppendedMessage]) -> dict[str, object]:
        policy = policy_of(self.world.services, name)
        new = [
            NewMessage(
                append_time=None if m.append_time is None else Instant(m.append_time),
                event_time=None if m.event_time is None else Instant(m.event_time),
                key=m.key, value=m.value, partition=m.partition, offset=m.offset, segment=m.segment,
                headers=tuple((header, content or b"") for header, content in m.headers),
            )
            for m in messages
        ]  # fmt: skip
        services = self.world.services
        forbidden = forbidden_keys(services.ledger, services.key_secret, name)
        given = self.world.writer.append(name, new, policy, forbidden, latest_allowed_time=policy.latest_allowed_time(self._writers_clock))
        refused = [{"index": index, "code": entry.code} for index, entry in enumerate(given) if isinstance(entry, Refusal)]
        kept = sum(isinstance(entry, Refusal) and entry != ERASED for entry in given)
        self._quarantined[name] = self._quarantined.get(name, 0) + kept
        return {"offsets": [self._shown(entry) for entry in given if not isinstance(entry, Refusal)], "refused": refused}

    @property
    def _writers_clock(self) -> Instant:
        """The clock for refusing future times of messages (CLK-4).

        A time is in the future if it is after the scenario's last run, or after this machine's time.
        """
        runs = (Instant(step.run.as_of) for step in self._scenario.steps if step.run is not None and step.run.as_of is not None)
        return min(self.world.made_at, max(runs, default=self.world.made_at))

    def _delete(self, name: TopicName, step: DeleteStep) -> dict[str, object]:
        at = step.at if step.at is not None else self._as_of
        return self._carry_out(name, Instant(at or 0), approve=True, work=verbs.request_of(step))

    def _copy(self, step: CopyStep) -> dict[str, object]:
        services, name, origin = self.world.services, self._name(step.to), self._name(step.origin)
        own = origin_of(name, services.topics.describe(name).settings)
        if own != origin:
            raise InvalidScenario("copy.from", step.origin, f"the origin of {step.to}: {'none' if own is None else own.topic}")
        before = set(self._stored(name))
        self.world.set_now(self._writers_clock)
        copy_topic(services, name)
        return {"offsets": [self._shown(position) for position in sorted(set(self._stored(name)) - before)]}

    def _run(self, name: TopicName, step: RunStep) -> dict[str, object]:
        assert step.as_of is not None
        self._as_of = Instant(step.as_of)
        self.world.set_now(self._as_of)
        work = verbs.work_of(self.world.services, name, step, self._plans)
        found = self._carry_out(name, self._as_of, approve=step.approve, work=work)
        verbs.settle_erasure(self.world.services, work)
        return found

    def _carry_out(self, name: TopicName, as_of: Instant, *, approve: bool, work: Work) -> dict[str, object]:
        self.world.set_now(as_of)
        services = self.world.services
        before, changes = self._stored(name), verbs.stored_changes(services, name)
        outcome = steps.run(
            services,
            name,
            as_of=as_of,
            approver=(lambda _plan, _report: (True, "scenario", "")) if approve else None,
            work=work,
        )
        after = self._stored(name)
        record = services.ledger.record(outcome.plan_id) if outcome.plan_id else None
        removed = {str(self._shown(p)): _reason_of(record, p) for p in sorted(before.keys() - after.keys())}
        removed |= verbs.removed_changes(changes, verbs.stored_changes(services, name), record)
        counts: dict[str, int] = {}
        for reason in removed.values():
            counts[reason] = counts.get(reason, 0) + 1
        if record is not None and record.plan.view_commit.compact:
            counts = dict(outcome.removed)
        return {
            "outcome": outcome.name, "detail": outcome.detail, "removed": removed, "removed_counts": counts,
            "more": outcome.more, "markers": _markers_of(after[p] for p in sorted(after.keys() - before.keys())),
            "cancelled_markers": outcome.cancelled_markers, "plan_id": outcome.plan_id, "held": _held_of(outcome),
            "warnings": list(outcome.warnings),
        }  # fmt: skip

    def _read(self, name: TopicName, step: ReadStep) -> dict[str, object]:
        services = self.world.services
        if step.document is not None:
            return verbs.read_document(services, name, step)
        self._check_messages(name)
        at = None if step.raw else Instant(step.at) if step.at is not None else self._as_of
        progress = [] if step.consumer is None else progress_of(services, name, step.consumer)
        since = None if step.since is None else Instant(step.since)
        asked = read(services, name, at=at, start=step.start, compacted=step.compacted, progress=progress, since=since, limit=step.limit)
        shown = list(asked)
        return {
            "messages": [[text_of(m.key), text_of(m.value)] for m in shown],
            "offsets": [self._shown((m.partition, m.offset)) for m in shown],
            "markers": _markers_of(shown),
        }

    # Expectations

    def _differences(self, index: int, expect: ExpectStep, step: Step) -> Iterator[str]:
        error = self._last.error
        if expect.error is None and error is not None:
            yield f"error: {error}"
            return
        for field_name in sorted(expect.model_fields_set):
            expected = getattr(expect, field_name)
            found = self._find_field(field_name, step, index, expected)
            if field_name == "markers":
                expected, found = _sort_by_key(expected), _sort_by_key(found)
            if field_name in ("messages", "history"):
                expected = [list(pair) for pair in expected]
            if expected != found:
                yield f"{field_name}: expected {expected!r}, found {found!r}"

    def _find_field(self, field_name: str, step: Step, index: int, expected: object) -> Any:
        if field_name == "error":
            return self._last.error.code if self._last.error else None
        name = self._topic(step) if step.topic or self._last.topic is None else self._last.topic
        if field_name == "kept":
            return [self._shown(position) for position in sorted(self._stored(name))]
        by_partition = self._several or isinstance(expected, dict)
        if field_name == "end_offset":
            ends = self.world.services.reader.log(name).end_offsets
            return {str(partition): offset for partition, offset in sorted(ends.items())} if by_partition else ends.get(0, 0)
        if field_name == "horizon":
            horizons = {partition: offset for partition, offset in horizons_of(self.world.services, name).items() if offset != NOTHING}
            return {str(partition): offset for partition, offset in sorted(horizons.items())} if by_partition else horizons.get(0)
        if field_name in ("changes", "snapshot") and field_name not in self._last.found:
            return verbs.look_at_documents(self.world.services, name, field_name, expected)
        if field_name == "quarantined":
            return self._quarantined.get(name, 0) + self.world.quarantined(name)
        if field_name not in self._last.found:
            where = f"steps[{index}].expect.{field_name}"
            known = ", ".join(sorted(self._last.found))
            raise InvalidScenario(where, field_name, f"what step {index - 1} ({self._last.verb}) can tell: {known}")
        return self._last.found[field_name]

    # Small helpers of the format

    @property
    def world(self) -> World:
        assert self._world is not None, "a failed load stops the scenario"
        return self._world

    def _name(self, topic: str) -> TopicName:
        stream, scratch = normalise_name(self._scenario.stream), self._world.scratch if self._world else ""
        return TopicName(stream=f"{scratch}.{stream}" if scratch else stream, topic=normalise_name(topic))

    def _topic(self, step: Step) -> TopicName:
        of_copy = None if step.copy_ is None else step.copy_.to
        return self._name(step.topic or of_copy or self._scenario.topic)

    def _stored(self, name: TopicName) -> dict[Position, Message]:
        if verbs.is_of_documents(self.world.services, name):
            return {}
        return {(message.partition, message.offset): message for message in self.world.services.reader.messages(name)}

    def _check_messages(self, name: TopicName) -> None:
        """Raises IsADocumentTopic."""
        check_messages(policy_of(self.world.services, name).values, name)

    def _shown(self, position: Position) -> int | str:
        return f"{position[0]}:{position[1]}" if self._several else position[1]


def _origins_first(topics: Mapping[str, Mapping[str, Value]]) -> list[str]:
    """Return the topics with every origin before its copies, because a copy can be created only after its origin."""
    waiting = {normalise_name(name): name for name in topics}
    found: list[str] = []

    def add_after_origin(name: str) -> None:
        given = waiting.pop(name, None)
        if given is not None:
            origin = topics[given].get("origin")
            if origin is not None:
                add_after_origin(TopicName.parse(str(origin)).topic)
            found.append(given)

    for name in list(waiting):
        add_after_origin(name)
    return found


def _reason_of(record: PlanRecord | None, position: Position) -> str:
    action = None if record is None else record.plan.removal_at(*position)
    if action is not None:
        return action.reason
    older = () if record is None or record.staged is None else record.staged.superseded
    named = any(position[0] == rows.partition and position[1] in offsets_of(rows.offsets) for rows in older)
    return "superseded" if named else "not planned"


def _markers_of(messages: Iterable[Message]) -> list[dict[str, object]]:
    return [
        {"key": text_of(m.key), "headers": [[name, text_of(content)] for name, content in m.headers]}
        for m in messages
        if is_marker(m.headers)
    ]


def _held_of(outcome: Outcome) -> list[dict[str, object]]:
    return [
        {"partition": h.partition, "from": h.first_base, "to": h.last_offset, "holder": h.holder, "detail": h.detail} for h in outcome.held
    ]


def _sort_by_key(markers: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(markers, key=lambda marker: str(marker.get("key")))
