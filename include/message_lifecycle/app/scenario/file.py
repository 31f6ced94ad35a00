"""The format of scenario files. Any other content raises InvalidScenario, which names the place."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from message_lifecycle.model.errors import InvalidInstant, InvalidScenario
from message_lifecycle.model.instants import parse_instant


def _bytes(value: object) -> object:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"base64: {error}") from None
    if value is None:
        return None
    raise ValueError('text, {"base64": "..."} or null')


def _instant(value: object) -> object:
    if value is None:
        return None
    try:
        return parse_instant(value)
    except InvalidInstant as error:
        raise ValueError(str(error)) from None


Bytes = Annotated[bytes | None, BeforeValidator(_bytes)]
Key = Annotated[bytes, BeforeValidator(_bytes)]
At = Annotated[int | None, BeforeValidator(_instant)]
Offsets = list[int | str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class AppendedMessage(_Strict):
    """A message that a step appends."""

    partition: int = Field(0, ge=0)
    offset: int | None = Field(None, ge=0)
    append_time: At = None
    event_time: At = None
    key: Bytes = None
    value: Bytes = None
    # A pair is a list in JSON.
    headers: list[Annotated[tuple[str, Bytes], Field(strict=False)]] = []
    segment: int | None = Field(None, ge=0)


class SealStep(_Strict):
    """Close the partition's active segment."""

    partition: int = Field(0, ge=0)


class CommitStep(_Strict):
    """Record a consumer's progress."""

    consumer: str
    partition: int = 0
    offset: int
    at: At = None


class CopyStep(_Strict):
    """Copy an origin's messages to a replica."""

    origin: str = Field(alias="from")
    to: str


class DocumentChange(_Strict):
    """A change of one document."""

    document: str
    server_seq: int
    client: str
    at: At = None
    payload: Any = None
    epoch: int | None = Field(None, ge=0)


ChangeStep = list[DocumentChange]


class SyncStep(_Strict):
    """Record that a client has synchronised a document."""

    document: str
    client: str
    server_seq: int
    at: At = None
    epoch: int | None = Field(None, ge=0)


class DetachStep(_Strict):
    """Forget a client's position in a document."""

    document: str
    client: str
    at: At = None
    epoch: int | None = Field(None, ge=0)


class _RunStep(_Strict):
    as_of: At
    approve: bool = True


class ScheduledRun(_RunStep):
    """A run of a scheduled operation."""

    operation: Literal[
        "message_cleaner", "retention", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge", "reclaim"
    ]


class ErasureRun(_RunStep):
    """An erasure of one key or of several."""

    operation: Literal["erasure"]
    key: Bytes = None
    keys: list[Key] = []
    forbid: bool = False

    @model_validator(mode="after")
    def _key_or_keys(self) -> ErasureRun:
        if (self.key is None) != bool(self.keys):
            raise ValueError("either `key`, or `keys` with one key or more")
        return self

    @property
    def every_key(self) -> list[bytes]:
        return self.keys if self.key is None else [self.key]


class UndoRun(_RunStep):
    """An undo. `step` is the index of the step that made the plan to undo."""

    operation: Literal["undo"]
    step: int = Field(ge=0)


RunStep = Annotated[ScheduledRun | ErasureRun | UndoRun, Field(discriminator="operation")]


class ReadStep(_Strict):
    """Read the topic, or a document."""

    start: int = Field(0, alias="from")
    raw: bool = False
    compacted: bool = False
    at: At = None
    limit: int | None = None
    since: At = None
    consumer: str | None = None
    document: str | None = None
    client_seq: int | None = None
    history: bool = False
    client: str | None = None
    epoch: int | None = Field(None, ge=0)


class ForeignDeleteStep(_Strict):
    """Delete messages as another engine does."""

    offsets: Offsets


class CorruptStep(_Strict):
    """Damage a line of the log's file."""

    line: int = Field(ge=1)
    text: str


class DeleteStep(_Strict):
    """Remove messages at a person's request: single offsets, a key's messages, messages without a key, or the beginning of the log."""

    offsets: Offsets | None = None
    key: Bytes = None
    keep: int | None = None
    before: int | None = None
    partition: int = Field(0, ge=0)
    null_keys: tuple[int, int] | None = Field(None, strict=False)
    at: At = None


class HoldStep(_Strict):
    """A key (of a topic of documents: a document), a range of offsets, or nothing: the whole topic."""

    key: Bytes = None
    partition: int = Field(0, ge=0)
    start: int | None = Field(None, alias="from")
    end: int | None = Field(None, alias="to")


class ExpectStep(_Strict):
    """Compare the state after the steps with these values."""

    kept: Offsets | None = None
    removed: dict[str, str] | None = None
    horizon: dict[str, int] | int | None = None
    removed_counts: dict[str, int] | None = None
    markers: list[dict[str, object]] | None = None
    messages: list[Annotated[tuple[object, object], Field(strict=False)]] | None = None
    offsets: Offsets | None = None
    end_offset: int | dict[str, int] | None = None
    more: bool | None = None
    outcome: str | None = None
    quarantined: int | None = None
    refused: list[dict[str, object]] | None = None
    cancelled_markers: int | None = None
    changes: list[int | str] | dict[str, list[int]] | None = None
    history: list[Annotated[tuple[int, object], Field(strict=False)]] | None = None
    snapshot: dict[str, object] | None = None
    epoch: int | None = None
    error: str | None = None


class Step(_Strict):
    """One verb, and the topic it is about."""

    topic: str | None = None
    append: list[AppendedMessage] | None = None
    seal: SealStep | None = None
    commit: CommitStep | None = None
    change: ChangeStep | None = None
    sync: SyncStep | None = None
    detach: DetachStep | None = None
    # The name without the underscore is a method of every model.
    copy_: CopyStep | None = Field(None, alias="copy")
    configure: dict[str, Any] | None = None
    delete: DeleteStep | None = None
    foreign_delete: ForeignDeleteStep | None = None
    hold: HoldStep | None = None
    release: HoldStep | None = None
    corrupt: CorruptStep | None = None
    run: RunStep | None = None
    read: ReadStep | None = None
    expect: ExpectStep | None = None

    @property
    def verb(self) -> str:
        return next(iter(self._verbs))

    @model_validator(mode="after")
    def _one_verb(self) -> Step:
        if len(self._verbs) != 1:
            raise ValueError(f"exactly one verb; found {', '.join(self._verbs) or 'none'}")
        return self

    @property
    def _verbs(self) -> list[str]:
        return sorted(name.rstrip("_") for name in self.model_fields_set - {"topic"})


class Scenario(_Strict):
    """One scenario; see the field list in the docs."""

    id: str
    server: dict[str, object] = {}
    stream: str = "test"
    topic: str = "messages"
    config: dict[str, object] = {}
    store: dict[str, object] = {}
    topics: dict[str, dict[str, object]] = {}
    steps: list[Step]


def load(path: Path) -> Iterator[Scenario]:
    """The scenarios of a `.json` file (one) or a `.jsonl` file (one a line). Raises InvalidScenario."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidScenario(path.name, error.strerror, "a file that can be read") from None
    except UnicodeDecodeError as error:
        raise InvalidScenario(path.name, str(error), "UTF-8 text") from None
    if path.suffix != ".jsonl":
        yield _parse(text, path.name)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _parse(line, f"{path.name}:{number}")


def _parse(text: str, where: str) -> Scenario:
    try:
        return Scenario.model_validate(json.loads(text))
    except ValueError as error:
        if not isinstance(error, ValidationError):
            raise InvalidScenario(where, str(error), "one JSON object") from None
        first = error.errors()[0]
        # The path of the error contains the name of the chosen form of `run`, which is not in the file, so remove the name. If no form
        # fits, the field that chooses the form is wrong, so add that field.
        chosen_by = str(first.get("ctx", {}).get("discriminator", "")).strip("'")
        loc = list(first["loc"])
        if loc[2:3] == ["run"]:
            del loc[3:4]
        loc += filter(None, [chosen_by])
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
        allowed = "Field required" if first["type"] == "union_tag_not_found" else first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            allowed = "the fields and verbs of the scenario format (`lifecycle scenario --help`)"
        raise InvalidScenario(f"{where}: {place.lstrip('.') or 'the file'}", first["input"], allowed) from None
