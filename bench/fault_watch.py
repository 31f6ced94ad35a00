"""Hold a process tree at its boundaries: before the kernel makes a call that may write to a file, a database or a JVM, this module sees it.

The kernel's own interface (seccomp's user notifications) sees the calls of Python, Java and C libraries alike, in their true order. The
interface holds the caller until this module answers. The kernel then makes the call, lets it fail with an error, or never makes it because
the tree is killed. Linux on x86-64, without any privilege.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lifecycle_local.processes import Process, end_processes, family, find_process, wait_until_ended

Kind = Literal["file", "catalog", "database", "java"]

_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SECCOMP, _GETFD = 1, 38, 317, 438
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_X86_64 = 0xC000003E
_OPEN, _OPENAT = 2, 257
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# By number: the call's name, and the position of the path in the arguments. The folder's descriptor, if any, is just before the path.
_BY_PATH = {2: ("open", 0), 257: ("open", 1), 82: ("rename", 1), 264: ("rename", 3), 316: ("rename", 3), 87: ("unlink", 0), 263: ("unlink", 1),
            83: ("mkdir", 0), 258: ("mkdir", 1), 84: ("rmdir", 0), 86: ("link", 1), 265: ("link", 3), 76: ("truncate", 0)}  # fmt: skip
_RENAMED = {82: 0, 264: 1, 316: 1}
_FROM_FOLDER = (257, 264, 316, 263, 258, 265)
_WORKING_FOLDER = -100
_BY_DESCRIPTOR = {74: "sync", 75: "sync", 77: "truncate", 1: "write", 18: "write", 20: "write", 44: "write", 46: "write", 326: "write"}
_SCATTERED, _MESSAGE, _COPIED = 20, 46, 326
_PATH_BYTES, _TEXT_BYTES = 4096, 100_000
# The time for an answer that the fault then loses; a JVM stages within that time.
_ANSWER_SECONDS = 60.0
_ENDS_WITHIN_SECONDS = 180.0
_POLL_MS = 20
GIVES_WAY = 5
# The parts of names that differ from run to run.
_NAMED_ANEW = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![a-z])[0-9a-f]{8,}|\d+")
_SQL = re.compile(rb"\b(INSERT INTO|UPDATE|DELETE FROM|FROM|SELECT|BEGIN|COMMIT|ROLLBACK|SET|SHOW)\b[\s\"]*([a-z_]\w*)?", re.IGNORECASE)
_READS = ("SELECT", "FROM", "SHOW", "SET", "BEGIN", "ROLLBACK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One call before the kernel makes it.

    `what`: the same in each run, because the parts of names that differ are left out. `writes`: the call changes, or may change (a call of
    Java), something lasting. `process`: the caller. `path`: of a file. `source`: the file that is renamed to `path`."""

    kind: Kind
    what: str
    writes: bool
    process: int = 0
    path: Path | None = None
    source: Path | None = None
    syncs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The kernel's message about a call."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]


@dataclass(slots=True)
class Tree:
    """One of our processes and its descendants. `folder`: calls on its files are boundaries. `database`: the port of the server."""

    folder: Path
    database: int
    log: Path
    process: Process = field(init=False)
    _listener: int = field(init=False)
    _peers: dict[str, int | None] = field(default_factory=dict)
    _groups: dict[int, int] = field(default_factory=dict)
    _members: dict[int, Process] = field(default_factory=dict)
    _prepared: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    _call: _Call | None = None

    def start(self, work: Callable[[], int]) -> None:
        """Begin the work in a process of its own, which leads a session."""
        shared = mmap.mmap(-1, 8)
        pid = os.fork()
        if pid == 0:
            self._be_watched(shared, work)
        while not (number := struct.unpack("i", shared[:4])[0]):
            time.sleep(0.001)  # the shared page is the only way to hear from the child until its filter is there
        if number < 0:
            raise SystemExit(f"the kernel refuses to tell calls (seccomp): {os.strerror(-number)}")
        found = find_process(pid)
        assert found is not None
        self.process = found
        self._listener = _descriptor_of(pid, number)
        shared[4:8] = struct.pack("i", 1)

    def _be_watched(self, shared: mmap.mmap, work: Callable[[], int]) -> None:
        status = 70
        try:
            os.setsid()
            os.nice(GIVES_WAY)  # each of its calls waits for the watcher, which on a busy machine would be the last to be served
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for number in (1, 2):
                os.dup2(out, number)
            listener = _filtered()
            shared[:4] = struct.pack("i", listener)
            while not struct.unpack("i", shared[4:8])[0]:
                time.sleep(0.001)  # the same in the other direction: a call that waits would itself be watched
            os.close(listener)
            status = work()
        except BaseException:  # noqa: BLE001  # a fork must never return into its parent's code: print any error and end the process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    def boundaries(self) -> Iterator[Boundary]:
        """Yield each boundary before its call. When the caller asks for the next one, the call is made, unless the caller has done
        something else with it. Ends with the tree's first process."""
        deadline = time.monotonic() + _ENDS_WITHIN_SECONDS
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while time.monotonic() < deadline:
            if not poll.poll(_POLL_MS) or (call := self._received()) is None:
                if not self.process.is_alive():
                    return
                continue
            self._call = call
            try:
                boundary = self._boundary(call)
                if boundary is not None:
                    yield replace(boundary, process=self._process(call.thread))
            except (OSError, ValueError):
                pass  # the process ended during the inspection
            self._answer()
        self.kill()
        raise TimeoutError(f"it did not end within {_ENDS_WITHIN_SECONDS:.0f} s; see {self.log}")

    def fail(self, error: int) -> None:
        """Let the call at which the tree is held fail with this error, without making the call."""
        self._answer(error=-error)

    def break_line(self) -> None:
        """Break the connection before the kernel makes the call at which the tree is held."""
        assert self._call is not None
        with socket.socket(fileno=_descriptor_of(self._process(self._call.thread), self._call.arguments[0])) as line:
            line.shutdown(socket.SHUT_RDWR)

    def lose_answer(self) -> None:
        """Let the server carry out the call at which the tree is held, but break the connection before the tree reads the answer."""
        assert self._call is not None
        call, self._call = self._call, None
        payload = self._payload(call, whole=True)
        with socket.socket(fileno=_descriptor_of(self._process(call.thread), call.arguments[0])) as line:
            self._deliver(line, payload)
            line.shutdown(socket.SHUT_RDWR)
        self._call = call
        self._answer(value=len(payload))

    def _deliver(self, line: socket.socket, payload: bytes) -> None:
        """Send it, and wait until all of the answer is there. Java answers by calls that are held as well."""
        poll, sent = select.poll(), 0
        poll.register(line, select.POLLOUT)
        while sent < len(payload):
            poll.poll(1000)
            sent += line.send(payload[sent:], socket.MSG_DONTWAIT)
        poll.modify(line, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        deadline, answer = time.monotonic() + _ANSWER_SECONDS, b""
        while time.monotonic() < deadline and not _is_whole(answer, of_java=payload[:2] == b"c\n"):
            ready = {descriptor for descriptor, _ in poll.poll(100)}
            if self._listener in ready:
                self._call = self._received()
                self._answer()
            elif line.fileno() in ready:
                part = line.recv(1 << 16, socket.MSG_DONTWAIT)
                if not part:
                    return
                answer += part

    def _received(self) -> _Call | None:
        """Return the next waiting call, or None if its process was killed meanwhile."""
        buffer = ctypes.create_string_buffer(80)
        if _libc.ioctl(self._listener, ctypes.c_ulong(_RECEIVE), buffer) < 0:
            return None
        identity, thread, _, number, _, _, *arguments = struct.unpack("<QIIiIQ6Q", buffer.raw)
        return _Call(id=identity, thread=thread, number=number, arguments=tuple(arguments))

    def kill(self) -> None:
        """SIGKILL of all processes of the tree, at once."""
        members = self._everybody()
        for member in (self.process, *members):
            member.signal(signal.SIGKILL)
        end_processes(members, polite_seconds=0)

    def _everybody(self) -> tuple[Process, ...]:
        """Also those whose parents have gone."""
        return tuple(dict.fromkeys(found for one in (self.process, *self._members.values()) for found in family(one)))

    def close(self) -> int:
        """The tree's first process is waited for, and whatever it has left is ended; its exit status, negative: the signal's number."""
        left = self._everybody()
        _, status = os.waitpid(self.process.pid, 0)
        os.close(self._listener)
        wait_until_ended(left, 5.0)
        end_processes(left, polite_seconds=0)
        return os.waitstatus_to_exitcode(status)

    def _answer(self, *, value: int = 0, error: int = 0) -> None:
        call, self._call = self._call, None
        if call is not None:
            goes_on = 0 if value or error else 1
            response = struct.pack("<QqiI", call.id, value, error, goes_on)
            _libc.ioctl(self._listener, ctypes.c_ulong(_SEND), ctypes.create_string_buffer(response, 24))

    def _process(self, thread: int) -> int:
        if thread not in self._groups:
            self._groups[thread] = _group(thread)
            member = find_process(self._groups[thread])
            if member is not None:
                self._members[member.pid] = member
        return self._groups[thread]

    def _boundary(self, call: _Call) -> Boundary | None:
        if call.number in _BY_PATH:
            name, at = _BY_PATH[call.number]
            found = self._of_file(name, _path(call, at))
            if found is not None and name == "rename":
                return replace(found, source=_path(call, _RENAMED[call.number]))
            return found
        name = _BY_DESCRIPTOR[call.number]
        at = 2 if call.number == _COPIED else 0
        target = _link(call.thread, call.arguments[at])
        if target.startswith("/"):
            return self._of_file(name, Path(target), syncs=name == "sync")
        if name != "write" or not target.startswith("socket:"):
            return None
        if target not in self._peers:
            self._peers[target] = _peer(self._process(call.thread), call.arguments[0])
        if self._peers[target] is None:
            return None
        payload = self._payload(call)
        if self._peers[target] == self.database:
            return _of_statement([*self._statements(target, payload)])
        return _of_java(payload)

    def _of_file(self, name: str, path: Path, *, syncs: bool = False) -> Boundary | None:
        if not path.is_relative_to(self.folder):
            return None
        place = _NAMED_ANEW.sub("*", str(path.relative_to(self.folder)))
        return Boundary(kind="file", what=f"{name} {place}", writes=True, path=path, syncs=syncs)

    def _statements(self, connection: str, payload: bytes) -> Iterator[bytes]:
        """Yield the statements in the messages of PostgreSQL's protocol. For a prepared statement, yield the text from its preparation."""
        at = 0
        while at + 5 <= len(payload) and payload[at : at + 1].isalpha():
            kind, length = payload[at : at + 1], int.from_bytes(payload[at + 1 : at + 5], "big")
            first, _, rest = payload[at + 5 : at + 1 + length].partition(b"\0")
            at += 1 + length
            second = rest.partition(b"\0")[0]
            if kind == b"Q":
                yield first
            elif kind == b"P":
                self._prepared[connection, first] = second
            elif kind == b"B":
                yield self._prepared.get((connection, second), b"")

    def _payload(self, call: _Call, *, whole: bool = False) -> bytes:
        most = 1 << 30 if whole else _TEXT_BYTES
        if call.number in (_SCATTERED, _MESSAGE):
            at, count = call.arguments[1], call.arguments[2]
            if call.number == _MESSAGE:
                at, count = struct.unpack("<QQ", _memory(call.thread, call.arguments[1] + 16, 16))
            parts = [struct.unpack("<QQ", _memory(call.thread, at + 16 * part, 16)) for part in range(count)]
            return b"".join(_memory(call.thread, start, min(length, most)) for start, length in parts)
        return _memory(call.thread, call.arguments[1], min(call.arguments[2], most))


def _of_statement(statements: Sequence[bytes]) -> Boundary | None:
    """Return the boundary for statements that a client sends together: the writing one, if any, because BEGIN comes with the next one."""
    found = [(verb.decode().upper(), (table or b"").decode().lower()) for text in statements for verb, table in _SQL.findall(text)]
    if not found:
        return Boundary(kind="database", what="ask whether it is there", writes=False) if statements else None
    # `FOR UPDATE` names no table. A client that locks a row is about to write.
    writing = [one for one in found if one[0] == "COMMIT" or (one[1] and one[0] not in _READS)]
    verb, table = (writing or [one for one in found if one[0] == "FROM" and one[1] not in ("", "pg_catalog")] or found)[0]
    what = {"FROM": f"SELECT {table}", "COMMIT": verb, "BEGIN": verb, "ROLLBACK": verb}.get(verb, f"{verb} {table}".strip())
    of_catalog = any(b"iceberg_" in text for text in statements)
    return Boundary(kind="catalog" if of_catalog else "database", what=what, writes=bool(writing))


def _of_java(payload: bytes) -> Boundary | None:
    """Return the boundary of a method or constructor that py4j calls in Java. Requests about names and memory are no boundary."""
    lines = payload.split(b"\n", 3)
    if lines[0] == b"c" and len(lines) > 2:
        return Boundary(kind="java", what=f"call {lines[2].decode(errors='replace')}", writes=True)
    return None


def _is_whole(answer: bytes, *, of_java: bool) -> bool:
    """True if the answer is complete: a line of py4j, or PostgreSQL's message that it is ready for the next statement."""
    return answer.endswith(b"\n") if of_java else answer[-6:-1] == b"Z\x00\x00\x00\x05"


# Requests to the kernel.


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


_libc = ctypes.CDLL(None, use_errno=True)
_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06


def die_with_parent() -> None:
    """SIGKILL, once the process that has started this one is gone."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _filtered() -> int:
    """Let the kernel report the calls of this process and its children. Return the listener's descriptor, or minus the error."""
    program = [
        _Instruction(_LOAD, 0, 0, 4),
        _Instruction(_EQUAL, 1, 0, _X86_64),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_LOAD, 0, 0, 0),
    ]
    # Opening a file only for reading is no boundary. The flags are the second argument of one call and the third of the other.
    for number, argument in ((_OPEN, 1), (_OPENAT, 2)):
        program += [
            _Instruction(_EQUAL, 0, 4, number),
            _Instruction(_LOAD, 0, 0, 16 + 8 * argument),
            _Instruction(_SET, 0, 1, _WRITES),
            _Instruction(_RETURN, 0, 0, _NOTIFY),
            _Instruction(_RETURN, 0, 0, _ALLOW),
        ]
    for number in sorted({*_BY_PATH, *_BY_DESCRIPTOR} - {_OPEN, _OPENAT}):
        program += [_Instruction(_EQUAL, 0, 1, number), _Instruction(_RETURN, 0, 0, _NOTIFY)]
    program.append(_Instruction(_RETURN, 0, 0, _ALLOW))
    array = (_Instruction * len(program))(*program)
    given = _Program(len(program), array)
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    found: int = _libc.syscall(_SECCOMP, 1, 8, ctypes.byref(given))
    return found if found > 0 else -ctypes.get_errno()


def _descriptor_of(pid: int, number: int) -> int:
    """Return a copy of another process's descriptor in this process."""
    handle = os.pidfd_open(pid)
    try:
        found: int = _libc.syscall(_GETFD, handle, number, 0)
    finally:
        os.close(handle)
    if found < 0:
        raise OSError(ctypes.get_errno(), "a descriptor of another process")
    return found


def _group(thread: int) -> int:
    """The process of the thread."""
    found = re.search(r"^Tgid:\s*(\d+)", Path(f"/proc/{thread}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _link(thread: int, number: int) -> str:
    number = ctypes.c_int(number & 0xFFFFFFFF).value
    of = "cwd" if number == _WORKING_FOLDER else f"fd/{number}"
    return os.readlink(f"/proc/{thread}/{of}")  # noqa: PTH115  # it may be no path: `socket:[7]`


def _path(call: _Call, at: int) -> Path:
    """That of the call's argument, and below the folder of the argument before where the call names one."""
    path = Path(os.fsdecode(_text(call.thread, call.arguments[at])))
    if not path.is_absolute() and call.number in _FROM_FOLDER:
        return Path(_link(call.thread, call.arguments[at - 1])) / path
    return path


def _peer(pid: int, number: int) -> int | None:
    """Return the port of the socket's peer on this machine, or None for another machine."""
    with socket.socket(fileno=_descriptor_of(pid, number)) as line:
        if line.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            return int(line.getpeername()[1])
        except OSError:
            return None


def _memory(thread: int, at: int, length: int) -> bytes:
    descriptor = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
    try:
        return os.pread(descriptor, length, at)
    finally:
        os.close(descriptor)


def _text(thread: int, at: int) -> bytes:
    """Read the text up to its zero byte. The memory behind the page may not exist."""
    first = _memory(thread, at, min(_PATH_BYTES, 4096 - at % 4096))
    return (first if b"\0" in first else first + _memory(thread, at + len(first), _PATH_BYTES)).partition(b"\0")[0]
