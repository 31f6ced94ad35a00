"""A real NATS server of the tests' own: loopback, a port that the server picks, a password, its data in a scratch folder.

Small and blocking, for tests; over the wire go exactly the bytes that a test states (the client alone would trim header values).
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.command import hpub_cmd, pub_cmd

import nats
from lifecycle_local import processes
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import Layout, project_root, venv_bin
from message_lifecycle.app.private_files import write_private

Header = tuple[str, bytes]
_SERVICE = "nats"
_START_SECONDS = 20.0
_REPLY_SECONDS = 20.0
_POLL_SECONDS = 0.05
_NO_MESSAGE = 10037
_HEADER_LINE = b"NATS/1.0\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as the server keeps it."""

    seq: int
    subject: str
    headers: tuple[Header, ...]
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A message to publish, its headers as bytes."""

    subject: str
    headers: tuple[Header, ...] = ()
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said to a publish: a sequence number, or the code of an error."""

    seq: int | None
    code: int | None


class NatsServer:
    """A connection to a server that runs."""

    def __init__(self, client: Client, runner: asyncio.Runner) -> None:
        self._client, self._runner = client, runner

    @property
    def version(self) -> tuple[int, int]:
        version = self._client.connected_server_version
        return version.major, version.minor

    def create_stream(self, *subjects: str, **config: object) -> str:
        """A stream of a name of its own; `config` is the server's own JSON (durations in nanoseconds)."""
        name = f"S{token_hex(6)}"
        whole = {"name": name, "subjects": [f"{name}.{subject}" for subject in subjects or (">",)], "storage": "file", **config}
        self._api(f"STREAM.CREATE.{name}", whole)
        return name

    def delete_stream(self, name: str) -> None:
        self._api(f"STREAM.DELETE.{name}", {})

    def state(self, name: str) -> Mapping[str, Any]:
        """`messages`, `first_seq`, `last_seq` and more."""
        state: Mapping[str, Any] = self._api(f"STREAM.INFO.{name}", {})["state"]
        return state

    def publish(self, name: str, messages: Sequence[Publish]) -> list[Answer]:
        """One after the other, in this order; subjects lie below the stream's name."""
        return self._runner.run(self._publish(name, messages))

    def messages(self, name: str) -> list[Stored]:
        """All that the stream holds, in order."""
        found: list[Stored] = []
        while True:
            seq = found[-1].seq + 1 if found else 1
            answer = self._request(f"STREAM.MSG.GET.{name}", {"seq": seq, "next_by_subj": ">"})
            if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
                return found
            message = _checked(answer)["message"]
            found.append(
                Stored(
                    seq=message["seq"],
                    subject=message["subject"].removeprefix(f"{name}."),
                    headers=_headers(base64.b64decode(message.get("hdrs", ""))),
                    payload=base64.b64decode(message.get("data", "")),
                )
            )

    def watch(self, name: str) -> Watch:
        """Everything that the stream gets from now on, and holds already, however short it lives there."""
        inbox = self._client.new_inbox()
        subscription = self._runner.run(self._client.subscribe(inbox))
        config = {"deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all"}
        self._api(f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": config})
        return Watch(name, subscription, self._runner)

    async def _publish(self, name: str, messages: Sequence[Publish]) -> list[Answer]:
        inbox = self._client.new_inbox()
        replies = await self._client.subscribe(f"{inbox}.*")
        for number, message in enumerate(messages):
            subject, reply = f"{name}.{message.subject}", f"{inbox}.{number}"
            if message.headers:
                lines = b"".join(header.encode() + b": " + value + b"\r\n" for header, value in message.headers)
                command = hpub_cmd(subject, reply, _HEADER_LINE + lines + b"\r\n", message.payload)
            else:
                command = pub_cmd(subject, reply, message.payload)
            await self._client._send_command(command)
        await self._client.flush()
        answers: dict[int, Answer] = {}
        while len(answers) < len(messages):
            reply_message: Msg = await replies.next_msg(_REPLY_SECONDS)
            said = json.loads(reply_message.data)
            number = int(reply_message.subject.rsplit(".", 1)[1])
            answers[number] = Answer(seq=said.get("seq"), code=said.get("error", {}).get("err_code"))
        await replies.unsubscribe()
        return [answers[number] for number in range(len(messages))]

    def _request(self, verb: str, body: Mapping[str, object]) -> dict[str, Any]:
        answer = self._runner.run(self._client.request(f"$JS.API.{verb}", json.dumps(body).encode(), timeout=_REPLY_SECONDS))
        return dict(json.loads(answer.data))

    def _api(self, verb: str, body: Mapping[str, object]) -> dict[str, Any]:
        return _checked(self._request(verb, body))


class Watch:
    """What a stream got, in its order."""

    def __init__(self, stream: str, subscription: Subscription, runner: asyncio.Runner) -> None:
        self._stream, self._subscription, self._runner = stream, subscription, runner
        self._seen: list[Stored] = []

    def seen(self) -> Sequence[Stored]:
        """All that came so far. The client gives headers by name, their values without spaces around them."""
        self._runner.run(self._take(_POLL_SECONDS))
        return tuple(self._seen)

    def first(self, count: int) -> Sequence[Stored]:
        """The first so many; waits for them."""
        end = time.monotonic() + _REPLY_SECONDS
        while len(found := self.seen()) < count:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(found)} messages of {count} came in {_REPLY_SECONDS} s")
        return found[:count]

    async def _take(self, wait_seconds: float) -> None:
        with suppress(TimeoutError):
            while True:
                message: Msg = await self._subscription.next_msg(wait_seconds)
                headers = tuple((name, value.encode()) for name, value in (message.headers or {}).items())
                subject = message.subject.removeprefix(f"{self._stream}.")
                self._seen.append(Stored(seq=message.metadata.sequence.stream, subject=subject, headers=headers, payload=message.data))

    def close(self) -> None:
        self._runner.run(self._subscription.unsubscribe())


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise RuntimeError(f"the server refused: {answer['error']}")
    return answer


def _headers(block: bytes) -> tuple[Header, ...]:
    lines = [line.partition(b":") for line in block.split(b"\r\n")[1:] if line]
    return tuple((name.decode(), value.removeprefix(b" ")) for name, _, value in lines)


@contextmanager
def started(folder: Path) -> Iterator[NatsServer]:
    """A server with its files in the folder, stopped at the end."""
    password = token_hex(16)
    config = {
        "listen": "127.0.0.1:-1",
        "ports_file_dir": str(folder),
        "authorization": {"user": "tests", "password": password},
        "jetstream": {"store_dir": str(folder / "jetstream")},
    }
    layout = Layout(project=project_root(), state=folder / "state")
    layout.prepare()
    file = folder / "server.conf"
    write_private(file, json.dumps(config))  # its own format takes JSON
    with stop_at_exit(stop, layout), asyncio.Runner() as runner:
        process = processes.launch(layout, _SERVICE, [venv_bin() / "nats-server", "-c", file], {}, identity="").process
        address = _address(folder / f"nats-server_{process.pid}.ports", process, processes.log_file(layout, _SERVICE))
        client = runner.run(nats.connect(address, user="tests", password=password, allow_reconnect=False))
        try:
            yield NatsServer(client, runner)
        finally:
            runner.run(client.close())


def stop(layout: Layout) -> None:
    processes.stop(layout, [_SERVICE], polite_seconds=_START_SECONDS)


def _address(ports: Path, process: processes.Process, log: Path) -> str:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.is_alive():
        if ports.is_file() and (text := ports.read_text()):
            return str(json.loads(text)["nats"][0])
        time.sleep(0.02)
    raise RuntimeError(f"nats-server did not start: {log.read_text()}")
