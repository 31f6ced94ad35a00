"""What stands between us and the streams: another password, no server, no Redis, keys of others, TLS, a cluster."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lifecycle_local.processes import choose_port, is_free
from lifecycle_local.redis import find_server
from message_lifecycle.app import steps
from message_lifecycle.model.errors import BackendUnavailable, UnknownTopic
from message_lifecycle.model.message import NewMessage
from message_lifecycle.stores.redis_streams.layout import topics_key
from message_lifecycle.stores.redis_streams.log import RedisLogs, Server
from tests.errors import raises
from tests.redis_streams.streams import AS_OF, CLICKS, Streams

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("password", ["hunter2", None])
def test_another_password_is_told_as_what_it_is(streams: Streams, server: Server, password: str | None) -> None:
    with closing(RedisLogs(replace(server, password=lambda: password))) as logs, pytest.raises(BackendUnavailable) as error:
        logs.open(CLICKS)
    assert "backend tests is not available: it refuses us" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_user_who_may_not_write_here_changes_nothing(streams: Streams, server: Server) -> None:
    streams.client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-eval"])
    topic = streams.topic()
    reader = replace(server, username="reader", password=lambda: "secret")
    with closing(reader.connect()) as client, pytest.raises(BackendUnavailable, match="this user may not do that"):
        topic.over(client).topics.describe(topic.name)
    streams.client.acl_deluser("reader")


def test_a_server_that_is_away_is_named(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{free.getsockname()[1]}/0"
    with closing(RedisLogs(replace(server, url=url))) as logs, pytest.raises(BackendUnavailable, match="Connection refused"):
        logs.names()


def test_what_answers_may_be_something_else(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with suppress(OSError):  # the test has ended
                connection, _ = other.accept()
                with connection:
                    connection.recv(1_000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"redis://127.0.0.1:{other.getsockname()[1]}/0"
        with closing(RedisLogs(replace(server, url=url))) as logs, pytest.raises(BackendUnavailable, match="is no Redis"):
            logs.names()


def test_a_topic_that_is_not_there(streams: Streams) -> None:
    with pytest.raises(UnknownTopic):
        streams.logs().open(CLICKS)
    assert streams.logs().names() == []


@pytest.mark.parametrize("what", ["topic", "stream", "set"])
def test_a_key_of_another_type_is_named_and_left_alone(streams: Streams, what: str) -> None:
    topic = streams.topic()
    key = {"topic": topic.keys.topic, "stream": topic.keys.stream(0), "set": topics_key(streams.prefix)}[what]
    streams.client.set(key, "mine")
    with raises("ForeignKey") as error:
        if what == "set":
            streams.logs().names()
        else:
            topic.append(1)
    assert topic.keys.topic in str(error.value) or key in str(error.value)
    assert streams.client.get(key) == b"mine"


def test_a_stream_that_was_there_before_the_topic_is_not_taken_over(streams: Streams) -> None:
    streams.client.xadd(f"{streams.prefix}:{{{CLICKS}}}:0", {"field": "value"})
    with raises("ForeignKey"):
        streams.topic()
    assert streams.client.xlen(f"{streams.prefix}:{{{CLICKS}}}:0") == 1


@pytest.mark.parametrize("entry_id", ["*", "3-1", "9-0"])
def test_entries_of_another_writer_stop_everything_and_nothing_is_lost(streams: Streams, entry_id: str) -> None:
    topic = streams.topic(max_records=1)
    topic.append(1, 2, 3)
    plan_id = topic.planned()
    streams.client.xadd(topic.keys.stream(0), {"field": "value"}, id=entry_id)
    for attempt in (lambda: topic.append(4), topic.run, lambda: topic.offsets(), lambda: steps.publish(topic.services, plan_id)):
        with raises("ForeignKey", match="did not write"):
            attempt()
    assert streams.client.xlen(topic.keys.stream(0)) == 4


def test_a_lock_that_is_held_is_waited_for_and_then_named(streams: Streams) -> None:
    topic = streams.topic()
    impatient = RedisLogs(streams.server, prefix=streams.prefix, client=streams.client, wait_seconds=0.1)
    with streams.logs().open(topic.name).lock(), raises("LogLocked"), impatient.open(topic.name).lock():
        pass
    with impatient.open(topic.name).lock():
        pass


def test_an_append_that_is_too_large_for_one_step_is_refused_whole(streams: Streams) -> None:
    topic = streams.topic()
    many = tuple((f"h{number}", b"") for number in range(5_000))
    with raises("InvalidAppend", match="5000 headers"):
        topic.write([NewMessage(append_time=None, key=b"k", value=b"v"), NewMessage(append_time=None, key=b"k", value=b"v", headers=many)])
    assert topic.offsets() == []


# TLS: the server of the package is built without, so a proxy speaks it, with a certificate of the tests' own.


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    of_certificate, of_key = folder / f"{name}.pem", folder / f"{name}.key"
    of_certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    of_key.write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return of_certificate, of_key


@pytest.fixture
def proxy(server: Server, tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """The same server by TLS, and the certificate that vouches for it."""
    of_certificate, of_key = certificate(tmp_path, "proxy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(of_certificate, of_key)
    target = int(server.url.rsplit(":", 1)[1].partition("/")[0])

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one side has hung up
            while content := source.recv(65_536):
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):  # the test has ended
            while True:
                plain, _ = listener.accept()
                with suppress(ssl.SSLError):  # a client that trusts another authority
                    outside = context.wrap_socket(plain, server_side=True)
                    inside = socket.create_connection(("127.0.0.1", target))
                    for ends in ((outside, inside), (inside, outside)):
                        threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield replace(server, url=f"rediss://127.0.0.1:{listener.getsockname()[1]}/0", ca_file=of_certificate), of_certificate
        listener.shutdown(socket.SHUT_RDWR)


def test_all_of_it_goes_by_tls(streams: Streams, proxy: tuple[Server, Path]) -> None:
    topic = streams.topic(max_records=2)
    topic.append(1, 2, 3)
    with closing(proxy[0].connect()) as client:
        assert topic.run(topic.over(client)).name == "published"
    assert topic.offsets() == [1, 2]


def test_a_server_that_nobody_we_trust_vouches_for_is_not_talked_to(proxy: tuple[Server, Path], tmp_path: Path) -> None:
    other, _ = certificate(tmp_path, "other")
    with closing(RedisLogs(replace(proxy[0], ca_file=other))) as logs, pytest.raises(BackendUnavailable, match=r"(?i)certificate"):
        logs.names()


# A cluster refuses what touches keys of more than one slot.


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Streams]:
    """One server that is a whole cluster."""
    # The cluster's own port is 10,000 higher: free, and below those that the system gives to outgoing connections.
    drawn = (choose_port(tmp_path / "ports.json", f"cluster-{again}") for again in count())
    port = next(port for port in drawn if port + 10_000 < 32_768 and is_free(port + 10_000))
    command = [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--save", "", "--dir", tmp_path]
    command += ["--cluster-config-file", "nodes.conf"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, env={"PATH": os.defpath}) as process:
        try:
            server = Server(name="cluster", url=f"redis://127.0.0.1:{port}/0")
            with closing(server.connect()) as client:
                _until_it_answers(client, process)
                client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
                _until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
                yield Streams(server=server, client=client, prefix="tests")
        finally:
            process.terminate()
    shutil.rmtree(tmp_path)


def _until(ask: Any) -> None:
    """A test that waits longer has failed."""
    deadline = time.monotonic() + 20
    while not ask():
        assert time.monotonic() < deadline, "waited for 20 s"
        time.sleep(0.05)  # the server tells nobody when it is ready


def _until_it_answers(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None, "the server has ended"
        with suppress(redis.ConnectionError):  # it does not listen yet
            return bool(client.ping())
        return False

    _until(answers)


def test_every_step_keeps_to_one_slot_of_a_cluster(cluster: Streams) -> None:
    with pytest.raises(redis.ResponseError, match="slot"):
        cluster.client.eval("return 1", 2, "a", "b")
    topic = cluster.topic(partitions=3, max_age_seconds=5.0)
    for partition in range(3):
        topic.append(1, None, 2, AS_OF, partition=partition)
    topic.group("billing", partition=2)
    assert dict(topic.run().removed) == {"retention_age": 4}
    assert [topic.offsets(partition) for partition in range(3)] == [[1, 3], [1, 3], [0, 1, 2, 3]]
