"""A REST catalog for this machine: Iceberg's own handlers behind an HTTP server, over whatever catalog a JVM has opened.

It serves what the specification of Iceberg's REST catalog asks for tables, views and namespaces, on the loopback, to those who know a token.
Several tables in one commit are not offered: the handlers commit them one by one, and a client must not take them for one.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from py4j.protocol import Py4JJavaError

from message_lifecycle.stores.iceberg.java import Java, Jvm, java_class, java_message, texts

_LOOPBACK = "127.0.0.1"
# How parts of a namespace are joined in a path.
_JOINED = "\x1f"
_STATUS = {
    "NoSuchTableException": HTTPStatus.NOT_FOUND,
    "NoSuchViewException": HTTPStatus.NOT_FOUND,
    "NoSuchNamespaceException": HTTPStatus.NOT_FOUND,
    "NoSuchIcebergTableException": HTTPStatus.NOT_FOUND,
    "AlreadyExistsException": HTTPStatus.CONFLICT,
    "NamespaceNotEmptyException": HTTPStatus.CONFLICT,
    "CommitFailedException": HTTPStatus.CONFLICT,
    "UnprocessableEntityException": HTTPStatus.UNPROCESSABLE_ENTITY,
    "ValidationException": HTTPStatus.BAD_REQUEST,
    "IllegalArgumentException": HTTPStatus.BAD_REQUEST,
    "BadRequestException": HTTPStatus.BAD_REQUEST,
    "UnsupportedOperationException": HTTPStatus.NOT_IMPLEMENTED,
}
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/views",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """`path`: its parts below `/v1`, decoded."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`: JSON; empty: no body."""

    status: int
    text: str = ""


Serve = Callable[[Asked], Answer]
Around = Callable[[Asked, Serve], Answer | None]
"""What is done instead of serving at once; None: the line breaks without an answer."""


class RestCatalog:
    def __init__(self, jvm: Jvm, *, token: str) -> None:
        self._jvm, self._catalog = jvm, jvm.lake
        self._token = token
        self.around: Around = lambda asked, serve: serve(asked)
        self._handlers: Java = jvm._jvm.org.apache.iceberg.rest.CatalogHandlers

    def serve(self, asked: Asked) -> Answer:
        try:
            return self._serve(asked)
        except Exception as error:
            # Where this process has started Spark, PySpark takes each error of Java for one of its own, and stumbles over it.
            of_java = error if isinstance(error, Py4JJavaError) else error.__context__
            if not isinstance(of_java, Py4JJavaError):
                raise
            return told(_STATUS.get(java_class(of_java), HTTPStatus.INTERNAL_SERVER_ERROR), java_message(of_java), java_class(of_java))

    def _serve(self, asked: Asked) -> Answer:
        match asked.method, *asked.path:
            case "GET", "config":
                return _json({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})
            case "GET", "namespaces":
                parent = self._namespace(asked.query.get("parent", ""))
                return self._told(self._handlers.listNamespaces(self._catalog, parent))
            case "POST", "namespaces":
                return self._told(self._handlers.createNamespace(self._catalog, self._read(asked, "CreateNamespaceRequest")))
            case "POST", "tables", "rename":
                self._handlers.renameTable(self._catalog, self._read(asked, "RenameTableRequest"))
                return Answer(HTTPStatus.NO_CONTENT)
            case _, "namespaces", namespace, *rest:
                return self._in_namespace(asked, self._namespace(namespace), rest)
            case _:
                return _unknown(asked)

    def _in_namespace(self, asked: Asked, namespace: Java, rest: list[str]) -> Answer:
        match asked.method, *rest:
            case (("GET" | "HEAD"),):
                return self._told(self._handlers.loadNamespace(self._catalog, namespace))
            case ("DELETE",):
                self._handlers.dropNamespace(self._catalog, namespace)
                return Answer(HTTPStatus.NO_CONTENT)
            case "POST", "properties":
                request = self._read(asked, "UpdateNamespacePropertiesRequest")
                return self._told(self._handlers.updateNamespaceProperties(self._catalog, namespace, request))
            case "GET", ("tables" | "views") as kind:
                listed = self._handlers.listTables if kind == "tables" else self._handlers.listViews
                return self._told(listed(self._catalog, namespace))
            case "POST", "tables":
                request = self._read(asked, "CreateTableRequest")
                made = self._handlers.stageTableCreate if request.stageCreate() else self._handlers.createTable
                return self._told(made(self._catalog, namespace, request))
            case "POST", "views":
                return self._told(self._handlers.createView(self._catalog, namespace, self._read(asked, "CreateViewRequest")))
            case _, "tables", name, *more:
                return self._of_table(asked, self._identifier(namespace, name), more)
            case _, "views", name:
                return self._of_view(asked, self._identifier(namespace, name))
            case _:
                return _unknown(asked)

    def _of_table(self, asked: Asked, name: Java, more: list[str]) -> Answer:
        match asked.method, *more:
            case (("GET" | "HEAD"),):
                return self._told(self._handlers.loadTable(self._catalog, name, self._iceberg.rest.RESTCatalogProperties.SnapshotMode.ALL))
            case ("POST",):
                return self._told(self._handlers.updateTable(self._catalog, name, self._read(asked, "UpdateTableRequest")))
            case ("DELETE",):
                self._handlers.dropTable(self._catalog, name)
                return Answer(HTTPStatus.NO_CONTENT)
            case "POST", "metrics":
                return Answer(HTTPStatus.NO_CONTENT)
            case _:
                return _unknown(asked)

    def _of_view(self, asked: Asked, name: Java) -> Answer:
        match asked.method:
            case "GET" | "HEAD":
                return self._told(self._handlers.loadView(self._catalog, name))
            case "POST":
                return self._told(self._handlers.updateView(self._catalog, name, self._read(asked, "UpdateTableRequest")))
            case "DELETE":
                self._handlers.dropView(self._catalog, name)
                return Answer(HTTPStatus.NO_CONTENT)
            case _:
                return _unknown(asked)

    @property
    def _iceberg(self) -> Java:
        return self._jvm._jvm.org.apache.iceberg

    def _namespace(self, joined: str) -> Java:
        return self._iceberg.catalog.Namespace.of(texts(self._jvm, *(part for part in joined.split(_JOINED) if part)))

    def _identifier(self, namespace: Java, name: str) -> Java:
        return self._iceberg.catalog.TableIdentifier.of(namespace, name)

    @cached_property
    def _mapper(self) -> Java:
        """As Iceberg's own, which its package keeps to itself."""
        jackson = self._iceberg.shaded.com.fasterxml.jackson
        mapper = jackson.databind.ObjectMapper()
        mapper.setVisibility(jackson.annotation.PropertyAccessor.FIELD, jackson.annotation.JsonAutoDetect.Visibility.ANY)
        mapper.configure(jackson.databind.DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, False)
        mapper.setPropertyNamingStrategy(jackson.databind.PropertyNamingStrategies.KebabCaseStrategy())
        self._iceberg.rest.RESTSerializers.registerAll(mapper)
        return mapper

    def _read(self, asked: Asked, of: str) -> Java:
        return self._mapper.readValue(asked.body, self._jvm._jvm.java.lang.Class.forName(f"org.apache.iceberg.rest.requests.{of}"))

    def _told(self, response: Java) -> Answer:
        return Answer(HTTPStatus.OK, self._text(response))

    def _text(self, response: Java) -> str:
        return str(self._mapper.writeValueAsString(response))

    def knows(self, header: str | None) -> bool:
        """Whether who sends this header has the token."""
        return header is not None and hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())


def _json(content: Mapping[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(content))


def told(status: HTTPStatus, message: str, kind: str) -> Answer:
    """An error, as the specification words it."""
    return Answer(status, json.dumps({"error": {"message": message, "type": kind, "code": status.value}}))


def _unknown(asked: Asked) -> Answer:
    return told(HTTPStatus.NOT_FOUND, f"no such endpoint: {asked.method} /v1/{'/'.join(asked.path)}", "NotFound")


@contextmanager
def serving(catalog: RestCatalog, *, port: int = 0) -> Iterator[str]:
    """Its address, for as long as it is served by threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            version, *path = (unquote(part) for part in split.path.strip("/").split("/"))
            query = {key: values[-1] for key, values in parse_qs(split.query).items()}
            asked = Asked(self.command, tuple(path), query, body)
            if not catalog.knows(self.headers.get("Authorization")):
                answer: Answer | None = told(HTTPStatus.UNAUTHORIZED, "the token is another", "NotAuthorizedException")
            elif version != "v1":
                answer = _unknown(asked)
            else:
                answer = catalog.around(asked, catalog.serve)
            if answer is None:
                self.close_connection = True
                self.connection.close()
                return
            content = b"" if self.command == "HEAD" else answer.text.encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_HEAD = _answer  # names that http.server asks for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((_LOOPBACK, port), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="rest-catalog", daemon=True)
    thread.start()
    try:
        yield f"http://{_LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
