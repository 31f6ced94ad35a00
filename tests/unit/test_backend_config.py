"""Backends in lifecycle.toml: what is read, and how what is wrong is named (NUM-1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app.backends_config import BackendTopic, Folder, RedisServer
from message_lifecycle.app.config import backends_file, server_settings_file
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.names import TopicName

WHOLE = """
[message_cleaner]
interval = 7

[backends.sessions]
kind = "redis_streams"
url = "rediss://cache.example:6380/2"
username = "lifecycle"
password_env = "SESSIONS_PASSWORD"
ca_file = "ca.pem"

[backends.sessions.topics."Web/ Clicks "]
max_age_seconds = 1.5
partitions = 3

[backends.audit]
kind = "json_file"
root = "audit"

[backends.logs]
kind = "rotating_file"
root = "/srv/logs"
max_bytes = 1000000

[backends.logs.topics.events]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "lifecycle.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_backends_are_read_with_their_topics(tmp_path: Path) -> None:
    file = write(tmp_path, WHOLE)
    sessions, audit, logs = backends_file(file)
    assert (sessions.name, sessions.kind) == ("sessions", "redis_streams")
    assert sessions.place == RedisServer(
        url="rediss://cache.example:6380/2", username="lifecycle", password_env="SESSIONS_PASSWORD", ca_file=tmp_path / "ca.pem"
    )
    assert sessions.topics == {TopicName(stream="web", topic="clicks"): BackendTopic(partitions=3, settings={"max_age_seconds": 1.5})}
    assert (audit.kind, audit.place, audit.topics) == ("json_file", Folder(root=tmp_path / "audit"), {})
    assert (logs.kind, logs.place) == ("rotating_file", Folder(root=Path("/srv/logs"), max_bytes=1_000_000))
    assert logs.topics == {TopicName(stream="default", topic="events"): BackendTopic(partitions=1, settings={})}


def test_the_servers_settings_are_read_beside_them(tmp_path: Path) -> None:
    assert server_settings_file(write(tmp_path, WHOLE)) == {"interval": 7}
    assert backends_file(write(tmp_path, "[message_cleaner]\ninterval = 7\n")) == ()


REDIS = '[backends.x]\nkind = "redis_streams"\n'


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("backends = 5", "backends", "a table of tables"),
        ("[backends]\nx = 1", "(the table)", "a table, with its kind"),
        ("[backends.x]", "kind", "json_file, rotating_file, redis_streams"),
        ('[backends.x]\nkind = "kafka"', "kind", "json_file, rotating_file, redis_streams"),
        ('[backends."X Y"]\nkind = "redis_streams"', "(name)", "x.y"),
        ('[backends."x/y"]\nkind = "redis_streams"', "(name)", "character '/'"),
        ('[backends.x]\nkind = "json_file"', "root", "required"),
        ('[backends.x]\nkind = "json_file"\nroot = ""', "root", "at least 1 character"),
        ('[backends.x]\nkind = "json_file"\nroot = "a"\nmax_bytes = 5', "max_bytes", "the keys of its kind"),
        ('[backends.x]\nkind = "rotating_file"\nroot = "a"\nmax_bytes = 0', "max_bytes", "greater than or equal to 1"),
        ('[backends.x]\nkind = "rotating_file"\nroot = "a"\nmax_bytes = true', "max_bytes", "valid integer"),
        (REDIS + 'url = "http://x"', "url", "redis://HOST:PORT/DATABASE"),
        (REDIS + 'url = "redis://"', "url", "redis://HOST:PORT/DATABASE"),
        (REDIS + 'url = "rediss://x?ssl_cert_reqs=none"', "url", "redis://HOST:PORT/DATABASE"),
        (REDIS + 'url = "redis://x:0"', "url", "a port from 1 to 65535"),
        (REDIS + 'url = "redis://x:70000"', "url", "a port from 1 to 65535"),
        (REDIS + 'url = "redis://x/name"', "url", "the number of a database"),
        (REDIS + 'url = "redis://x"\npassword_file = "a"\npassword_env = "B"', "(the table)", "not both"),
        (REDIS + 'password_file = "a"', "(the table)", "the server of the embedded default"),
        (REDIS + 'url = "redis://x"\nca_file = "a"', "(the table)", "rediss://"),
        (REDIS + 'password = "x"', "password", "the keys of its kind"),
        (REDIS + "topics = 5", "topics", "valid dictionary"),
        (REDIS + '[backends.x.topics."a/b/c"]', "topics", "'/'"),
        (REDIS + '[backends.x.topics."A b"]\n[backends.x.topics."a.b"]', "topics", "is the same one"),
        (REDIS + "[backends.x.topics.a]\npartitions = 0", "partitions", "from 1 to 100000"),
        (REDIS + "[backends.x.topics.a]\npartitions = 100001", "partitions", "from 1 to 100000"),
        ('[backends.x]\nkind = "json_file"\nroot = "a\\u0000b"', "root", "no NUL"),
        (REDIS + 'url = "rediss://x"\nca_file = "a\\u0000b"', "ca_file", "no NUL"),
        (REDIS + 'url = "redis://x"\npassword_file = "a\\u0000b"', "password_file", "no NUL"),
        (REDIS + "[backends.x.topics.a]\npartitions = true", "partitions", "from 1 to 100000"),
        (REDIS + "[backends.x.topics.a]\nmax_age_seconds = -1", "max_age_seconds", "seconds"),
        (REDIS + "[backends.x.topics.a]\nmax_age = 1", "max_age", "the topic settings"),
        (REDIS + '[backends.x.topics.a]\n[backends.y]\nkind = "redis_streams"\n[backends.y.topics.a]', "topics", "x has it already"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, key: str, allowed: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        backends_file(write(tmp_path, text))
    assert error.value.key == key
    assert "lifecycle.toml" in error.value.where
    assert allowed in str(error.value)


@pytest.mark.parametrize(
    "line", ['url = "redis://:hunter2@x"', 'url = "redis://lifecycle:hunter2@x:70000"', 'password = "hunter2"', 'url = "hunter2"']
)
def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        backends_file(write(tmp_path, REDIS + line))
    assert "hunter2" not in str(error.value)


def test_a_password_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    (of_file,) = backends_file(write(tmp_path, REDIS + 'url = "redis://x"\npassword_file = "secret"'))
    (of_environment,) = backends_file(write(tmp_path, REDIS + 'url = "redis://x"\npassword_env = "X_PASSWORD"'))
    monkeypatch.setenv("X_PASSWORD", "hunter3")
    for backend, expected in ((of_file, "hunter2"), (of_environment, "hunter3")):
        assert isinstance(backend.place, RedisServer)
        assert backend.place.password() == expected
        assert expected not in repr(backend)


@pytest.mark.parametrize(("line", "key"), [('password_file = "none"', "password_file"), ('password_env = "X_PASSWORD"', "password_env")])
def test_a_password_that_is_not_there_is_an_error_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, key: str
) -> None:
    monkeypatch.delenv("X_PASSWORD", raising=False)
    (backend,) = backends_file(write(tmp_path, f'{REDIS}url = "redis://x"\n{line}'))
    assert isinstance(backend.place, RedisServer)
    with pytest.raises(InvalidSetting) as error:
        backend.place.password()
    assert (error.value.key, error.value.where) == (key, "lifecycle.toml [backends.x]")
