"""The tables `[backends.NAME]` of lifecycle.toml: backends that are no tables, with their topics, checked at the edge (NUM-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from message_lifecycle.model.errors import InvalidName, InvalidSetting
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import SECTION, check_policy, new_topic_settings

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
    """The folder of a backend of files. A file is rotated at the size `max_bytes`; with None, each topic has one file."""

    root: Path
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """A Redis server. Without `url`, the server of the embedded default. The password is in a file or an environment variable."""

    url: str | None = None
    username: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    ca_file: Path | None = None
    where: str = field(default="", compare=False)

    def password(self) -> str | None:
        """Read the password at each new connection, so that a changed password needs no new configuration. Raises InvalidSetting."""
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
        """Return whether the backend uses the Redis server of the embedded default."""
        return isinstance(self.place, RedisServer) and self.place.url is None


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _CommonSettings(_StrictModel):
    topics: dict[str, dict[str, object]] = {}


def _refuse_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path, which holds no NUL")
    return path


_PathText = Annotated[str, Field(min_length=1), AfterValidator(_refuse_nul)]


class _Files(_CommonSettings):
    root: _PathText


class _JsonFile(_Files):
    kind: Literal["json_file"]


class _RotatingFile(_Files):
    kind: Literal["rotating_file"]
    max_bytes: int = Field(ge=1)


class _RedisStreams(_CommonSettings):
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
    def _check_one_server(self) -> _RedisStreams:
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
    """Read the table `[backends]` of a parsed lifecycle.toml.

    Args:
        given: The parsed table.
        server: The settings of the same file.
        where: The name of the file, for errors.
        folder: The folder that relative paths start from.

    Raises:
        InvalidSetting: A value is wrong.
        UnsupportedLimit: The backend cannot hold a topic's policy (RET-6).
    """
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
        raise _as_invalid_setting(error, where) from None
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
        form = str(name)
        if form in seen:
            raise InvalidSetting(where=where, key="topics", value=text, allowed=f"a topic once; {seen[form]!r} is the same one")
        seen[form] = text
        partitions = content.get("partitions", 1)
        if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= _PARTITIONS_MOST:
            raise InvalidSetting(where=of_topic, key="partitions", value=partitions, allowed=f"a whole number from 1 to {_PARTITIONS_MOST}")
        settings = {key: value for key, value in content.items() if key != "partitions"}
        yield name, BackendTopic(partitions=partitions, settings=new_topic_settings(settings, where=of_topic))


def _as_invalid_setting(error: ValidationError, where: str) -> InvalidSetting:
    """Return the first error as InvalidSetting. The value of an address stays hidden, because it may hold a password."""
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
