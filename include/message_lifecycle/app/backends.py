"""Backends without tables: their services next to the lake's, and their topics, which are created and altered by the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, assert_never

from message_lifecycle.app.backends_config import ConfiguredBackend, Folder, RedisServer
from message_lifecycle.app.config import named_redis
from message_lifecycle.app.known import is_missing
from message_lifecycle.app.operations.registry import operations_on_records
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.receipts import eraser_of
from message_lifecycle.app.routing import RoutingEraser, RoutingGroups, RoutingLogs, RoutingReader, RoutingTopics
from message_lifecycle.app.services import Services, Stores, find_topic
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.errors import BackendUnavailable, CatalogUnavailable, InvalidSetting, LifecycleError, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ports import Eraser, Gate, Groups
    from message_lifecycle.stores.record_log import RecordLogs
    from message_lifecycle.stores.record_log.store import RecordLogStore
    from message_lifecycle.stores.redis_streams.log import Server

# Configured backends next to the lake. Every verb reaches their topics by name, and opens a backend only for one of its own topics.
#
# The first question about a topic applies its configuration to the backend. A topic that the ledger has never known is created. Settings
# that differ are altered; a tightened setting then needs a person's approval as usual (DEL-3). A topic that the ledger knows but the
# backend does not have is missing, and is never created again (OBL-1).


def with_backends(lake: Services, backends: tuple[ConfiguredBackend, ...]) -> Services:
    """The lake with the backends' topics; the gate, the ledger and the server's settings are one for all."""
    opened_backends = {backend.name: OpenedBackend(lake, backend) for backend in backends}
    elsewhere = {name: opened_backends[backend.name] for backend in backends for name in backend.topics}

    def services_of(name: TopicName) -> Services:
        backend = elsewhere.get(name)
        return lake if backend is None else backend.services_for(name)

    return with_parts(
        lake,
        topics=RoutingTopics(lake.topics, services_of),
        reader=RoutingReader(services_of),
        stores=with_parts(
            lake.stores,
            log=RoutingLogs(lambda name: services_of(name).stores.log),
            rewrite=RoutingEraser(lambda name: eraser_of(services_of(name), name)),
        ),
        groups=RoutingGroups(services_of),
        backends={name: backend.kind for backend in backends for name in backend.topics},
        strays=partial(_describe_unconfigured_topics, backends, opened_backends),
    )


def _describe_unconfigured_topics(backends: Sequence[ConfiguredBackend], opened_backends: Mapping[str, OpenedBackend]) -> list[str]:
    """Describe topics in the backends that the configuration does not name. An unreachable backend is listed, too: it may have some."""
    found: list[str] = []
    for backend in backends:
        named = {name for other in backends if other.place == backend.place for name in other.topics}
        try:
            there = opened_backends[backend.name].services.topics.list()
        except LifecycleError as error:
            found.append(f"backend {backend.name}: {error.code}: {error}")
        else:
            what = f"lies in backend {backend.name}, which the configuration does not say of it, and was not looked into"
            found += [f"{name}: {what}" for name in there if name not in named]
    return found


class OpenedBackend:
    """One backend, opened at the first question about one of its topics.

    The first question about a topic applies the configuration of that topic alone, so a damaged log hides no other log of the backend.
    """

    def __init__(self, lake: Services, backend: ConfiguredBackend) -> None:
        self._lake, self._backend = lake, backend
        self._up_to_date: set[TopicName] = set()

    @cached_property
    def services(self) -> Services:
        """The services of the backend. Raises BackendUnavailable, InvalidSetting."""
        _refuse_shadows(self._lake, self._backend)
        return _services(self._lake, self._backend)

    def services_for(self, name: TopicName) -> Services:
        """Return the services of the backend after its topic `name` is as the configuration says, or is missing.

        Raises:
            BackendUnavailable: The backend is away.
            InvalidSetting: The configuration does not fit the topic.
        """
        services = self.services
        if name not in self._up_to_date and _bring_up_to_date(self._lake, services, self._backend, name):
            self._up_to_date.add(name)
        return services


def _services(lake: Services, backend: ConfiguredBackend) -> Services:
    from message_lifecycle.stores.record_log.eraser import RecordLogEraser
    from message_lifecycle.stores.record_log.store import RecordLogStore
    from message_lifecycle.stores.redis_streams.log import RedisLogs

    logs = _logs(backend)
    store = RecordLogStore(logs, server=lake.server, operations=operations_on_records, frames=_rows_to_arrow)
    groups = logs if isinstance(logs, RedisLogs) else None
    eraser = RecordLogEraser(logs, server=lake.server, frames=_rows_to_arrow)
    return record_log(store, logs, lake.server, ledger=lake.ledger, gate=lake.gate, eraser=eraser, groups=groups)


def _rows_to_arrow(evidence: Mapping[str, object]) -> Mapping[str, object]:
    """Turn each list of rows into an Arrow table for Great Expectations.

    An empty list gives a table without columns. The checks need only its number of rows.
    """
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
    return Services(
        topics=store,
        reader=store,
        stores=Stores(
            backend=logs.backend,
            log=store,
            log_return=None,
            view=None,
            view_removal=None,
            view_return=None,
            snapshots=None,
            snapshots_return=None,
            changes=None,
            changes_return=None,
            forget=None,
            rewrite=eraser,
        ),
        copier=None,
        documents=None,
        gate=gate,
        ledger=ledger,
        # A log of single records has no segments that time could end (EXP-3).
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
    if place.url is None:
        return named_redis(name)
    from message_lifecycle.stores.redis_streams.log import Server

    return Server(name=name, url=place.url, username=place.username, password=place.password, ca_file=place.ca_file)


def _refuse_shadows(lake: Services, backend: ConfiguredBackend) -> None:
    """Refuse a topic with the name of a lake topic, because it would hide that topic. An unreachable lake has no visible topic to hide."""
    for name in backend.topics.keys() - lake.backends.keys():
        with suppress(UnknownTopic, CatalogUnavailable):
            lake.topics.describe(name)
            where = f"backend {backend.name}"
            raise InvalidSetting(where=where, key="topics", value=str(name), allowed="names that no topic of the lake has")


def _bring_up_to_date(lake: Services, s: Services, backend: ConfiguredBackend, name: TopicName) -> bool:
    """Create or alter the topic as the configuration says. Return False if the topic is missing: nothing is created then."""
    wanted, where = backend.topics[name], f"backend {backend.name}, topic {name}"
    try:
        found = s.topics.describe(name)
    except UnknownTopic:
        # Ask the lake, because its tables also record deleted topics.
        if is_missing(lake, name):
            return False
        _require_known_logs(lake, s, backend, name)
        create_topic(s, name, partitions=wanted.partitions, settings=wanted.settings)
        return True
    if found.partitions != wanted.partitions:
        raise InvalidSetting(where=where, key="partitions", value=wanted.partitions, allowed=f"{found.partitions}, as it was made")
    if dict(found.settings) != dict(wanted.settings):
        alter_topic(s, name, {key: wanted.settings.get(key) for key in found.settings.keys() | wanted.settings.keys()})
    return True


def _require_known_logs(lake: Services, s: Services, backend: ConfiguredBackend, name: TopicName) -> None:
    """Refuse to create a new topic if every log that the ledger knows in this backend is missing: the place is probably away.

    Raises:
        BackendUnavailable: The topic would be created in a folder below a disk that is not mounted, or on an empty server.
    """
    known = sorted(lake.ledger.known_topics().keys() & backend.topics.keys())
    if known and all(find_topic(s, one) is None for one in known):
        raise BackendUnavailable(
            backend.name,
            f"none of the topics that the ledger knows there ({', '.join(map(str, known))}) is in it, so {name} was not created",
            "Bring back the disk or server that holds them. If they are meant to be gone, say so for each: "
            "`lifecycle topic forget TOPIC --by NAME --why WHY`",
        )
