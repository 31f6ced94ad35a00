"""Backends that are no tables, with the topics they hold: the tables `[backends.NAME]` of lifecycle.toml, checked at the edge (NUM-1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, assert_never, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from message_lifecycle.app.known import new_topic_name
from message_lifecycle.app.operations.registry import on_records
from message_lifecycle.app.services import Services, Stores
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.errors import BackendUnavailable, CatalogUnavailable, InvalidName, InvalidSetting, LifecycleError, UnknownTopic
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.names import TopicName, composed, normalise_name
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME, resolve
from message_lifecycle.model.topic import SECTION, check_policy, created
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ports import Eraser, Gate, Groups
    from message_lifecycle.stores.record_log import RecordLogs
    from message_lifecycle.stores.record_log.store import RecordLogStore
    from message_lifecycle.stores.redis_streams.log import Server

BackendKind = Literal["json_file", "rotating_file", "redis_streams"]
_HIDDEN = "(not shown)"
_PARTITIONS_MOST = 100_000
"""As the command line takes, too: each costs memory, used or not."""
_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTopic:
    """A topic of a backend: `settings` are its policy, checked."""

    partitions: int
    settings: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where a backend of files keeps them; `max_bytes`: at which size a file is rotated (None: one file a topic)."""

    root: Path
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """A Redis server. `url` None: the one of the embedded default. The password lies in a file or a variable of the environment."""

    url: str | None = None
    username: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    ca_file: Path | None = None
    where: str = field(default="", compare=False)

    def password(self) -> str | None:
        """Read when a connection is made, so that a new one counts without a new configuration. Raises InvalidSetting."""
        if self.password_env is not None:
            found = os.environ.get(self.password_env, "")
            key, named = "password_env", self.password_env
        elif self.password_file is not None:
            key, named = "password_file", str(self.password_file)
            try:
                found = self.password_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError):
                found = ""
        else:
            return None
        if not found:
            raise InvalidSetting(where=self.where, key=key, value=named, allowed="one that is set, can be read and holds the password")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredBackend:
    """One configured backend."""

    name: str
    kind: BackendKind
    place: Folder | RedisServer
    topics: Mapping[TopicName, BackendTopic]

    @property
    def is_embedded(self) -> bool:
        """Whether it lies on the Redis server of the embedded default."""
        return isinstance(self.place, RedisServer) and self.place.url is None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Common(_Strict):
    topics: dict[str, dict[str, Any]] = {}


def _no_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path, which holds no NUL")
    return path


_PathText = Annotated[str, Field(min_length=1), AfterValidator(_no_nul)]


class _Files(_Common):
    root: _PathText


class _JsonFile(_Files):
    kind: Literal["json_file"]


class _RotatingFile(_Files):
    kind: Literal["rotating_file"]
    max_bytes: int = Field(ge=1)


class _RedisStreams(_Common):
    kind: Literal["redis_streams"]
    url: str | None = None
    username: str | None = Field(None, min_length=1)
    password_file: _PathText | None = None
    password_env: str | None = Field(None, min_length=1)
    ca_file: _PathText | None = None

    @field_validator("url")
    @classmethod
    def _url_without_secrets(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None or "@" in url:
            raise ValueError("an address without user and password: username, and password_file or password_env, name those")
        if parts.scheme not in _SCHEMES or parts.query or parts.fragment or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("redis://HOST:PORT/DATABASE, rediss:// for TLS, or unix:///PATH")
        try:
            in_order = parts.scheme == "unix" or ((parts.port is None or parts.port > 0) and (parts.path.strip("/") or "0").isdecimal())
        except ValueError:
            in_order = False
        if not in_order:
            raise ValueError("a port from 1 to 65535, and the number of a database after it")
        return url

    @model_validator(mode="after")
    def _of_one_server(self) -> _RedisStreams:
        if self.password_file is not None and self.password_env is not None:
            raise ValueError("password_file or password_env, not both")
        if self.url is None and any((self.username, self.password_file, self.password_env, self.ca_file)):
            raise ValueError("url beside the rest: without it, the server of the embedded default is meant, which knows its own password")
        if self.ca_file is not None and not str(self.url).startswith("rediss:"):
            raise ValueError("ca_file beside a url that begins with rediss://")
        return self


_KINDS: TypeAdapter[_JsonFile | _RotatingFile | _RedisStreams] = TypeAdapter(
    Annotated[_JsonFile | _RotatingFile | _RedisStreams, Field(discriminator="kind")]
)


def read_backends(given: object, *, server: Mapping[str, Value], where: str, folder: Path) -> tuple[ConfiguredBackend, ...]:
    """The table `[backends]` of a parsed lifecycle.toml. `server`: the settings of the same file; `folder`: what relative paths start from.

    Raises InvalidSetting, and UnsupportedLimit for a policy that its backend cannot hold (RET-6)."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(where=where, key=SECTION, value=given, allowed="a table of tables, [backends.NAME]")
    found = tuple(_backend(str(name), content, where=where, folder=folder) for name, content in given.items())
    seen: dict[TopicName, str] = {}
    for backend in found:
        for topic in backend.topics:
            if topic in seen:
                allowed = f"a topic in one backend alone; {seen[topic]} has it already"
                raise InvalidSetting(where=f"{where} [{SECTION}.{backend.name}]", key="topics", value=str(topic), allowed=allowed)
            seen[topic] = backend.name
            own = backend.topics[topic].settings
            of_topic = f"{where} [{SECTION}.{backend.name}], topic {topic}"
            check_policy(backend.kind, resolve(topic=own, server=server), own, where=of_topic)
    return found


def _backend(name: str, content: object, *, where: str, folder: Path) -> ConfiguredBackend:
    where = f"{where} [{SECTION}.{name}]"
    try:
        if normalise_name(name) != name:
            raise InvalidSetting(where=where, key="(name)", value=name, allowed=f"the name as it is kept: {normalise_name(name)}")
        if not isinstance(content, Mapping):
            raise InvalidSetting(where=where, key="(the table)", value=content, allowed="a table, with its kind first")
        read = _KINDS.validate_python(content)
    except InvalidName as error:
        raise InvalidSetting(where=where, key="(name)", value=name, allowed=str(error)) from None
    except ValidationError as error:
        raise _named(error, where) from None
    place: Folder | RedisServer
    if isinstance(read, _RedisStreams):
        place = RedisServer(
            url=read.url,
            username=read.username,
            password_file=None if read.password_file is None else folder / read.password_file,
            password_env=read.password_env,
            ca_file=None if read.ca_file is None else folder / read.ca_file,
            where=where,
        )
    else:
        place = Folder(root=folder / read.root, max_bytes=read.max_bytes if isinstance(read, _RotatingFile) else None)
    return ConfiguredBackend(name=name, kind=read.kind, place=place, topics=dict(_topics(read.topics, where)))


def _topics(given: Mapping[str, Mapping[str, object]], where: str) -> Iterator[tuple[TopicName, BackendTopic]]:
    seen: dict[str, str] = {}
    for text, content in given.items():
        of_topic = f'{where} topics."{text}"'
        try:
            name = TopicName.parse(text)
        except InvalidName as error:
            raise InvalidSetting(where=where, key="topics", value=text, allowed=str(error)) from None
        form = composed(str(name))
        if form in seen:
            raise InvalidSetting(where=where, key="topics", value=text, allowed=f"a topic once; {seen[form]!r} is the same one")
        seen[form] = text
        partitions = content.get("partitions", 1)
        if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= _PARTITIONS_MOST:
            raise InvalidSetting(where=of_topic, key="partitions", value=partitions, allowed=f"a whole number from 1 to {_PARTITIONS_MOST}")
        settings = {key: value for key, value in content.items() if key != "partitions"}
        yield name, BackendTopic(partitions=partitions, settings=created(settings, where=of_topic))


def _named(error: ValidationError, where: str) -> InvalidSetting:
    """The first thing that is wrong, by the key it stands under; of an address no value, for it may hold a password."""
    first = error.errors(include_url=False)[0]
    kinds = ("json_file", "rotating_file", "redis_streams")
    key = ".".join(str(part) for part in first["loc"] if part not in kinds) or "(the table)"
    if first["type"] in ("union_tag_not_found", "union_tag_invalid"):
        key, allowed = "kind", ", ".join(kinds)
        value: object = first["input"].get("kind") if isinstance(first["input"], dict) else first["input"]
    else:
        allowed = first["msg"].removeprefix("Value error, ")
        value = _HIDDEN if "url" in key or isinstance(first["input"], dict) else first["input"]
    if first["type"] == "extra_forbidden":
        allowed, value = "the keys of its kind (docs/backends.md)", _HIDDEN
    return InvalidSetting(where=where, key=key, value=value, allowed=allowed)


# Configured backends beside the lake: every verb reaches their topics by name, and opens a backend only when it is about one of them.
#
# What the configuration says of a topic is brought to the backend when it is opened: a topic that is not there is made, settings that
# differ are altered, and what was tightened then asks a person as ever (DEL-3).


_PARTS = ("topics", "reader", "copier", "documents")
_STORES = ("log", "view", "snapshots", "changes", "rewrite", "forget")


def beside(lake: Services, backends: tuple[ConfiguredBackend, ...]) -> Services:
    """The lake with the backends' topics; the gate, the ledger and the server's settings are one for all."""
    services = {backend.name: cache(partial(_opened_beside, lake, backend)) for backend in backends}
    elsewhere: dict[TopicName, Callable[[], Services]] = {name: services[backend.name] for backend in backends for name in backend.topics}
    parts = {part: cast(Any, _ByTopic(part, lake, elsewhere)) for part in _PARTS}
    stores = {key: cast(Any, _ByTopic(f"stores.{key}", lake, elsewhere)) for key in _STORES}
    kinds = {name: backend.kind for backend in backends for name in backend.topics}
    return replace(
        lake,
        **parts,
        stores=replace(lake.stores, **stores),
        groups=_GroupsByTopic(elsewhere),
        backends=kinds,
        strays=partial(_strays, backends, services),
    )


def _strays(backends: Sequence[ConfiguredBackend], services: Mapping[str, Callable[[], Services]]) -> list[str]:
    """A backend that cannot be asked is named as well: unknown is not none."""
    found: list[str] = []
    for backend in backends:
        named = {name for other in backends if other.place == backend.place for name in other.topics}
        try:
            there = services[backend.name]().topics.list()
        except LifecycleError as error:
            found.append(f"backend {backend.name}: {error.code}: {error}")
        else:
            what = f"lies in backend {backend.name}, which the configuration does not say of it, and was not looked into"
            found += [f"{name}: {what}" for name in there if name not in named]
    return found


class _ByTopic:
    """One part of the services: a call goes where its first argument's topic lies. `list` is the lake's alone, for what goes through
    all topics must not fail where one backend is away: `Services.backends` names the others."""

    def __init__(self, part: str, lake: Services, elsewhere: Mapping[TopicName, Callable[[], Services]]) -> None:
        self._part, self._lake, self._elsewhere = part, lake, elsewhere

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*subject: Any, **given: Any) -> Any:
            name = _topic_of(subject[0]) if subject else None
            services_of = None if name is None else self._elsewhere.get(name)
            services = self._lake if services_of is None else services_of()
            return getattr(attrgetter(self._part)(services), method)(*subject, **given)

        return call


def _topic_of(subject: object) -> TopicName | None:
    match subject:
        case TopicName():
            return subject
        case LogState() | Plan():
            return subject.topic
        case Verdict():
            return subject.plan.topic
        case _:
            return None


class _GroupsByTopic:
    def __init__(self, elsewhere: Mapping[TopicName, Callable[[], Services]]) -> None:
        self._elsewhere = elsewhere

    def progress(self, name: TopicName) -> Any:
        services_of = self._elsewhere.get(name)
        groups = None if services_of is None else services_of().groups
        return () if groups is None else groups.progress(name)


def _opened_beside(lake: Services, backend: ConfiguredBackend) -> Services:
    _refuse_shadows(lake, backend)
    return opened(lake, backend)


def opened(lake: Services, backend: ConfiguredBackend) -> Services:
    """The services of one backend, with its topics as the configuration wants them. Raises BackendUnavailable, InvalidSetting."""
    from message_lifecycle.stores.record_log.eraser import RecordLogEraser
    from message_lifecycle.stores.record_log.store import RecordLogStore
    from message_lifecycle.stores.redis_streams.log import RedisLogs

    logs = _logs(backend)
    store = RecordLogStore(logs, server=lake.server, operations=on_records, frames=_as_tables)
    groups = logs if isinstance(logs, RedisLogs) else None
    eraser = RecordLogEraser(logs, server=lake.server, frames=_as_tables)
    services = record_log(store, logs, lake.server, ledger=lake.ledger, gate=lake.gate, eraser=eraser, groups=groups)
    _bring_up_to_date(services, backend)
    return services


def _as_tables(evidence: Mapping[str, object]) -> Mapping[str, object]:
    """Each list of rows as an Arrow table, which Great Expectations is given; of no rows, one without columns: how many there are is all that
    is asked of it then."""
    import pyarrow as pa

    return {name: pa.Table.from_pylist(rows) if isinstance(rows, list) else rows for name, rows in evidence.items()}


def record_log(
    store: RecordLogStore,
    logs: RecordLogs,
    server: Mapping[str, Value],
    *,
    ledger: Ledger,
    gate: Gate,
    eraser: Eraser,
    groups: Groups | None = None,
) -> Services:
    """Services over a backend of single records, which has neither views nor documents nor copies."""
    from message_lifecycle.stores.record_log.absent import NoCopies, NoDocuments, NoPast, NoViews

    views, documents = NoViews(logs.backend), NoDocuments(logs.backend)
    return Services(
        topics=store,
        reader=store,
        stores=Stores(
            log=store,
            view=views,
            snapshots=documents,
            changes=documents,
            rewrite=eraser,
            forget=NoPast(logs.backend),
        ),
        copier=NoCopies(logs.backend),
        documents=documents,
        gate=gate,
        ledger=ledger,
        # No time ends a segment of a log of single records (EXP-3).
        server={name: value for name, value in server.items() if not BY_NAME[name].when_made},
        groups=groups,
    )


def _logs(backend: ConfiguredBackend) -> RecordLogs:
    match backend.place:
        case RedisServer():
            from message_lifecycle.stores.redis_streams.log import RedisLogs

            return RedisLogs(_server(backend.name, backend.place))
        case Folder(root=root, max_bytes=max_bytes):
            if max_bytes is None:
                from message_lifecycle.stores.json_file import JsonFiles

                return JsonFiles(root)
            from message_lifecycle.stores.rotating_file import RotatingFiles

            return RotatingFiles(root, max_bytes=max_bytes)
        case never:
            assert_never(never)


def _server(name: str, place: RedisServer) -> Server:
    from message_lifecycle.stores.redis_streams.log import Server

    if place.url is not None:
        return Server(name=name, url=place.url, username=place.username, password=place.password, ca_file=place.ca_file)
    from message_lifecycle.local import redis
    from message_lifecycle.local.layout import find_layout

    address = redis.running(find_layout())
    if address is None:
        raise BackendUnavailable(name, "the Redis server of the embedded default does not run", "Start it: `make up`")
    return Server(name=name, url=address.url, password=lambda: address.password)


def _refuse_shadows(lake: Services, backend: ConfiguredBackend) -> None:
    """A topic that is a table too would be hidden by its namesake here. A lake that cannot be asked hides nothing that could be seen."""
    for name in backend.topics:
        with suppress(UnknownTopic, CatalogUnavailable):
            lake.topics.describe(name)
            where = f"backend {backend.name}"
            raise InvalidSetting(where=where, key="topics", value=str(name), allowed="names that no topic of the lake has")


def _bring_up_to_date(s: Services, backend: ConfiguredBackend) -> None:
    for name, wanted in backend.topics.items():
        try:
            found = s.topics.describe(name)
        except UnknownTopic:
            kept = new_topic_name(s, name)
            if kept != name:
                # The configuration is where the topic is looked for, by exactly this name.
                where = f"backend {backend.name}"
                raise InvalidSetting(
                    where=where, key="topics", value=ascii(str(name)), allowed=f"a new name in NFC: {str(kept)!a}"
                ) from None
            create_topic(s, name, partitions=wanted.partitions, settings=wanted.settings)
            continue
        if found.partitions != wanted.partitions:
            where = f"backend {backend.name}, topic {name}"
            raise InvalidSetting(where=where, key="partitions", value=wanted.partitions, allowed=f"{found.partitions}, as it was made")
        if dict(found.settings) != dict(wanted.settings):
            alter_topic(s, name, {key: wanted.settings.get(key) for key in found.settings.keys() | wanted.settings.keys()})
