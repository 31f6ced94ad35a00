"""An object store for this machine: moto's S3 behind a check of each signature, on the loopback.

moto itself accepts any secret. Here a key opens the objects below one path, as long as the key is valid, as a catalog's keys do.
"""

from __future__ import annotations

import hmac
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from secrets import token_hex
from socket import SHUT_RDWR
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.models import FakeKey, s3_backends
from pyarrow.fs import S3FileSystem
from werkzeug.serving import make_server

from lifecycle_local.cluster import Key, files_at
from lifecycle_local.processes import LOOPBACK

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/s3/aws4_request,\s*"
    r"SignedHeaders=(?P<headers>[^,]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
# Not HTTP/1.0, where each request would open a connection of its own.
_PROTOCOL = "HTTP/1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Request:
    """A request to the server.

    `path` is the bucket and the object, decoded. `source` is the object to copy there, or None. `given` is True for a key that a catalog
    has given out.
    """

    given: bool
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = field(repr=False)
    source: str | None = None

    @property
    def affected_paths(self) -> tuple[str, ...]:
        """Paths of the objects that it is about; of a listing, of what their names begin with."""
        if self.method == "POST" and "delete" in self.query:
            named = (node.text or "" for node in ElementTree.fromstring(self.body).iter() if node.tag.rpartition("}")[2] == "Key")
            return tuple(f"{self.path.rstrip('/')}/{name}" for name in named)
        if self.path.count("/") == 1 or self.path.endswith("/"):
            return (f"{self.path.rstrip('/')}/{self.query.get('prefix', '')}",)
        return (self.path,) if self.source is None else (self.path, self.source)


Start = Callable[..., Any]
Serve = Callable[[], Iterable[bytes]]
Around = Callable[[S3Request, Serve], "Iterable[bytes] | Refused | None"]
"""What is done instead of serving at once; None: the line breaks without an answer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a refused request."""

    status: HTTPStatus
    code: str


class S3Server:
    """`asked`: all requests since the last check, oldest first, also with their bodies if the server `remembers` them."""

    def __init__(self, root: Key, *others: Key, remembers: bool = True) -> None:
        self._remembers = remembers
        self.root = root
        self.keys = {key.name: key for key in (root, *others)}
        self.around: Around = lambda _, serve: serve()
        self.asked: list[S3Request] = []
        self._moto = create_backend_app("s3")
        self.uri = ""

    def create_access_key(self, below: str) -> Key:
        """Return a new key, for objects below the path only."""
        made = Key(token=token_hex(16), below=below)
        self.keys[made.name] = made
        return made

    def end_keys(self) -> None:
        """End all keys that `create_access_key` has given out so far."""
        ended = {name: replace(key, until=time.monotonic()) for name, key in self.keys.items() if key.token is not None}
        self.keys.update(ended)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        raw = environ["REQUEST_URI"]
        split = urlsplit(raw)
        # A body that comes in chunks has no length in its header.
        body = environ["wsgi.input"].read(-1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0))
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        query = {name: values[-1] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        signed = _SIGNED.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
        key = None if signed is None else self.keys.get(signed["key"])
        given = key is not None and key.token is not None
        copied = environ.get("HTTP_X_AMZ_COPY_SOURCE")
        source = None if copied is None else f"/{unquote(urlsplit(copied).path).removeprefix('/')}"
        asked = S3Request(given=given, method=environ["REQUEST_METHOD"], path=unquote(split.path), query=query, body=body, source=source)
        answer = self._refuses(asked, signed, environ, raw) or self._answer(asked, environ, start)
        if answer is None:
            environ["werkzeug.socket"].shutdown(SHUT_RDWR)
            raise ConnectionAbortedError
        if isinstance(answer, Refused):
            content = b"" if asked.method == "HEAD" else f"<Error><Code>{escape(answer.code)}</Code></Error>".encode()
            start(
                f"{answer.status.value} {answer.status.phrase}",
                [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))],
            )
            return [content]
        return answer

    def _answer(self, asked: S3Request, environ: dict[str, Any], start: Start) -> Iterable[bytes] | Refused | None:
        if self._remembers:
            self.asked.append(asked)
        return self.around(asked, lambda: self._part(asked, environ, start) or self._moto(environ, start))

    def _part(self, asked: S3Request, environ: Mapping[str, str], start: Start) -> Iterable[bytes] | None:
        """Return a range of an object, because moto copies the whole object twice for each range. None: no such request or object."""
        wanted = _RANGE.fullmatch(environ.get("HTTP_RANGE", ""))
        bucket, _, name = asked.path.removeprefix("/").partition("/")
        if asked.method != "GET" or wanted is None or not set(asked.query) <= {"x-id"} or not self._has(bucket):
            return None
        found = _bucket(bucket).keys.get(name)
        if not isinstance(found, FakeKey):
            return None
        first, last = int(wanted[1]), min(int(wanted[2] or found.size), found.size - 1)
        if first > last:
            return None
        with found.lock:
            found._value_buffer.seek(first)
            content = found._value_buffer.read(last + 1 - first)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(content)),
            "Content-Range": f"bytes {first}-{last}/{found.size}",
            "Accept-Ranges": "bytes",
            "ETag": found.etag,
            "Last-Modified": found.last_modified_RFC1123,
        }
        start("206 PARTIAL CONTENT", list(headers.items()))
        return [content]

    def _has(self, bucket: str) -> bool:
        return bucket in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets

    def _refuses(self, asked: S3Request, found: re.Match[str] | None, environ: Mapping[str, Any], raw: str) -> Refused | None:
        key = None if found is None else self.keys.get(found["key"])
        if found is None or key is None:
            return Refused(HTTPStatus.FORBIDDEN, "InvalidAccessKeyId")
        if time.monotonic() >= key.until:
            return Refused(HTTPStatus.BAD_REQUEST, "ExpiredToken")
        if key.token is not None and not hmac.compare_digest(environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""), key.token):
            return Refused(HTTPStatus.FORBIDDEN, "InvalidToken")
        request = AWSRequest(method=asked.method, url=f"{self.uri}{raw}")
        for name in found["headers"].split(";"):
            request.headers[name] = environ[name.upper().replace("-", "_") if name in ("content-type", "content-length") else _header(name)]
        if "x-amz-content-sha256" not in request.headers:
            request.headers["x-amz-content-sha256"] = environ["HTTP_X_AMZ_CONTENT_SHA256"]
        request.context["timestamp"] = environ["HTTP_X_AMZ_DATE"]
        signer = S3SigV4Auth(Credentials(key.name, key.secret), "s3", found["region"])
        signed = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        if not hmac.compare_digest(signed, found["signature"]):
            return Refused(HTTPStatus.FORBIDDEN, "SignatureDoesNotMatch")
        if not all(path.startswith(key.below) for path in asked.affected_paths):
            return Refused(HTTPStatus.FORBIDDEN, "AccessDenied")
        return None

    @cached_property
    def files(self) -> S3FileSystem:
        """Return the whole store, for a test to inspect."""
        return files_at(self.uri, self.root)

    def objects(self, below: str) -> list[str]:
        """Paths of all objects below the folder, empty ones that stand for folders included."""
        return sorted(path for path, versions in self._versions_below(below) if isinstance(versions[-1], FakeKey))

    def content(self, path: str) -> bytes:
        bucket, _, name = path.partition("/")
        return bytes(_bucket(bucket).keys[name].value)

    @contextmanager
    def keeping_versions(self, bucket: str) -> Iterator[None]:
        """Keep the versions of objects that are deleted or replaced in the block."""
        _bucket(bucket).versioning_status = "Enabled"
        try:
            yield
        finally:
            _bucket(bucket).versioning_status = None

    def earlier_versions(self, below: str) -> list[tuple[str, bytes]]:
        """Path and content of each that is not the newest of its object, or whose object was deleted."""
        return [(path, one.value) for path, versions in self._versions_below(below) for one in versions[:-1] if isinstance(one, FakeKey)]

    def end_versions(self, below: str) -> None:
        """As a rule of the bucket does."""
        for path, versions in list(self._versions_below(below)):
            bucket, _, name = path.partition("/")
            if isinstance(versions[-1], FakeKey):
                _bucket(bucket).keys.setlist(name, versions[-1:])
            else:
                dict.pop(_bucket(bucket).keys, name)  # its own asks each for a file to take away

    def _versions_below(self, below: str) -> Iterator[tuple[str, list[Any]]]:
        """Yield the path of each object and its versions, the oldest first. The last version may be the mark of a deletion."""
        bucket, _, prefix = below.partition("/")
        kept = _bucket(bucket).keys
        return ((f"{bucket}/{name}", kept.getlist(name)) for name in kept if name.startswith(f"{prefix.rstrip('/')}/"))


def _bucket(name: str) -> Any:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[name]


def _header(name: str) -> str:
    return f"HTTP_{name.upper().replace('-', '_')}"


class _Handler(MotoRequestHandler):
    protocol_version = _PROTOCOL
    disable_nagle_algorithm = True

    def log(self, *_: object, **__: object) -> None:
        pass


@contextmanager
def s3_server(root: Key | None = None, *others: Key, port: int = 0, remembers: bool = True) -> Iterator[S3Server]:
    """Serve from threads of this process during the block. Objects are in memory. `root`: a key for everything; by default a random one."""
    made = S3Server(root or Key(), *others, remembers=remembers)
    server = make_server(LOOPBACK, port, made, threaded=True, request_handler=_Handler)
    made.uri = f"http://{LOOPBACK}:{server.server_port}"
    thread = Thread(target=server.serve_forever, name="s3", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
