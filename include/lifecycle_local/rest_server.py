"""A REST catalog for this machine: Iceberg's own handlers behind an HTTP server, over whatever catalog a JVM has opened.

The server answers the requests of Iceberg's REST specification for tables, views and namespaces, on the loopback, to clients that know a
token. A commit of several tables is optional and has two forms. One form is atomic, by one transaction of the catalog's database. The other
form commits one table after the other, as Iceberg's own handlers do. A client must not take the second form for an atomic commit.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from message_lifecycle.stores.iceberg.java import Java, Jvm, java_class, java_message, texts
from message_lifecycle.stores.iceberg.layout import CATALOG

if TYPE_CHECKING:
    import psycopg

_LOOPBACK = "127.0.0.1"
# The separator between parts of a namespace in a path.
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
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/tables/rename",
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/views",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
)
TRANSACTION = "transactions/commit"
# As JdbcCatalog swaps one.
_SWAP = """
    UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = %s
    WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND metadata_location = %s
"""


@dataclass(frozen=True, slots=True)
class RestRequest:
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


Serve = Callable[[RestRequest], Answer]
Around = Callable[[RestRequest, Serve], Answer | None]
"""What is done instead of serving at once; None: the line breaks without an answer."""


class CommitConflict(Exception):
    """Another commit to one of the tables."""


class RestCatalog:
    """The `jvm`'s catalog behind REST.

    `database` opens the catalog's database. `at_once` is how the catalog commits several tables. None: the catalog does not offer that.
    `between` is called within such a commit, after each table except the last.
    """

    def __init__(self, jvm: Jvm, *, token: str, database: Callable[[], AbstractContextManager[psycopg.Connection]]) -> None:
        self._jvm, self._catalog, self._database = jvm, jvm.lake, database
        self._token = token
        self.around: Around = lambda asked, serve: serve(asked)
        self.at_once: Literal["all or none", "one after the other", "the last one first"] | None = None
        self.between: Callable[[], None] = lambda: None
        self._handlers: Java = jvm.jvm.org.apache.iceberg.rest.CatalogHandlers

    def serve(self, asked: RestRequest) -> Answer:
        try:
            return self._serve(asked)
        except CommitConflict as error:
            return error_answer(HTTPStatus.CONFLICT, str(error), "CommitFailedException")
        except Exception as error:
            # If this process has started Spark, PySpark takes each error of Java for its own, and fails on it.
            of_java = error if isinstance(error, Py4JJavaError) else error.__context__
            if not isinstance(of_java, Py4JJavaError):
                raise
            return error_answer(
                _STATUS.get(java_class(of_java), HTTPStatus.INTERNAL_SERVER_ERROR), java_message(of_java), java_class(of_java)
            )

    def _serve(self, asked: RestRequest) -> Answer:
        match asked.method, *asked.path:
            case "GET", "config":
                offered = () if self.at_once is None else (f"POST /v1/{{prefix}}/{TRANSACTION}",)
                return _json({"defaults": {}, "overrides": {}, "endpoints": [*_ENDPOINTS, *offered]})
            case "GET", "namespaces":
                parent = self._namespace(asked.query.get("parent", ""))
                return self._ok_answer(self._handlers.listNamespaces(self._catalog, parent))
            case "POST", "namespaces":
                return self._ok_answer(self._handlers.createNamespace(self._catalog, self._read(asked, "CreateNamespaceRequest")))
            case "POST", "tables", "rename":
                self._handlers.renameTable(self._catalog, self._read(asked, "RenameTableRequest"))
                return Answer(HTTPStatus.NO_CONTENT)
            case "POST", *path if self.at_once is not None and "/".join(path) == TRANSACTION:
                changes = list(self._read(asked, "CommitTransactionRequest").tableChanges())
                if self.at_once == "all or none":
                    self._commit_at_once(changes)
                else:
                    self._commit_one_by_one(changes if self.at_once == "one after the other" else changes[::-1])
                return Answer(HTTPStatus.NO_CONTENT)
            case _, "namespaces", namespace, *rest:
                return self._answer_namespace(asked, self._namespace(namespace), rest)
            case _:
                return _unknown(asked)

    def _answer_namespace(self, asked: RestRequest, namespace: Java, rest: list[str]) -> Answer:
        match asked.method, *rest:
            case (("GET" | "HEAD"),):
                return self._ok_answer(self._handlers.loadNamespace(self._catalog, namespace))
            case ("DELETE",):
                self._handlers.dropNamespace(self._catalog, namespace)
                return Answer(HTTPStatus.NO_CONTENT)
            case "POST", "properties":
                request = self._read(asked, "UpdateNamespacePropertiesRequest")
                return self._ok_answer(self._handlers.updateNamespaceProperties(self._catalog, namespace, request))
            case "GET", ("tables" | "views") as kind:
                listed = self._handlers.listTables if kind == "tables" else self._handlers.listViews
                return self._ok_answer(listed(self._catalog, namespace))
            case "POST", "tables":
                request = self._read(asked, "CreateTableRequest")
                made = self._handlers.stageTableCreate if request.stageCreate() else self._handlers.createTable
                return self._ok_answer(made(self._catalog, namespace, request))
            case "POST", "register":
                return self._ok_answer(self._handlers.registerTable(self._catalog, namespace, self._read(asked, "RegisterTableRequest")))
            case "POST", "views":
                return self._ok_answer(self._handlers.createView(self._catalog, namespace, self._read(asked, "CreateViewRequest")))
            case _, "tables", name, *more:
                return self._answer_table(asked, self._identifier(namespace, name), more)
            case _, "views", name:
                return self._answer_view(asked, self._identifier(namespace, name))
            case _:
                return _unknown(asked)

    def _answer_table(self, asked: RestRequest, name: Java, more: list[str]) -> Answer:
        match asked.method, *more:
            case (("GET" | "HEAD"),):
                return self._ok_answer(
                    self._handlers.loadTable(self._catalog, name, self._iceberg.rest.RESTCatalogProperties.SnapshotMode.ALL)
                )
            case ("POST",):
                return self._ok_answer(self._handlers.updateTable(self._catalog, name, self._read(asked, "UpdateTableRequest")))
            case ("DELETE",):
                self._handlers.dropTable(self._catalog, name)
                return Answer(HTTPStatus.NO_CONTENT)
            case "POST", "metrics":
                return Answer(HTTPStatus.NO_CONTENT)
            case _:
                return _unknown(asked)

    def _answer_view(self, asked: RestRequest, name: Java) -> Answer:
        match asked.method:
            case "GET" | "HEAD":
                return self._ok_answer(self._handlers.loadView(self._catalog, name))
            case "POST":
                return self._ok_answer(self._handlers.updateView(self._catalog, name, self._read(asked, "UpdateTableRequest")))
            case "DELETE":
                self._handlers.dropView(self._catalog, name)
                return Answer(HTTPStatus.NO_CONTENT)
            case _:
                return _unknown(asked)

    def _commit_one_by_one(self, changes: Sequence[Java]) -> None:
        """Check every change first, and then commit the changes one by one, as Iceberg's own fixture does."""
        for change in changes:
            self._changed(change)
        for at, change in enumerate(changes):
            if at:
                self.between()
            self._handlers.updateTable(self._catalog, change.identifier(), change)

    def _commit_at_once(self, changes: Sequence[Java]) -> None:
        """Write the new metadata of every table, and then let one transaction of the database point to all of them."""
        swaps = []
        for change in changes:
            operations, base, changed = self._changed(change)
            old, name = str(base.metadataFileLocation()), change.identifier()
            number = int(old.rpartition("/")[2].partition("-")[0]) + 1
            new = str(operations.metadataFileLocation(f"{number:05d}-{uuid4()}.metadata.json"))
            self._iceberg.TableMetadataParser.write(changed, operations.io().newOutputFile(new))
            swaps.append((new, old, CATALOG, str(name.namespace().toString()), str(name.name()), old))
        with self._database() as connection, connection.transaction():
            for at, swap in enumerate(swaps):
                if at:
                    self.between()
                if connection.execute(_SWAP, swap).rowcount != 1:
                    raise CommitConflict(f"another commit to {'.'.join(swap[3:5])} came first")

    def _changed(self, change: Java) -> tuple[Java, Java, Java]:
        """The table's operations, its metadata, and what the change makes of them."""
        operations = self._catalog.loadTable(change.identifier()).operations()
        base = operations.current()
        for requirement in change.requirements():
            requirement.validate(base)
        builder = self._iceberg.TableMetadata.buildFrom(base)
        for update in change.updates():
            update.applyTo(builder)
        return operations, base, builder.build()

    @property
    def _iceberg(self) -> Java:
        return self._jvm.jvm.org.apache.iceberg

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

    def _read(self, asked: RestRequest, of: str) -> Java:
        return self._mapper.readValue(asked.body, self._jvm.jvm.java.lang.Class.forName(f"org.apache.iceberg.rest.requests.{of}"))

    def _ok_answer(self, response: Java) -> Answer:
        return Answer(HTTPStatus.OK, self._json_text(response))

    def _json_text(self, response: Java) -> str:
        return str(self._mapper.writeValueAsString(response))

    def has_token(self, header: str | None) -> bool:
        """True if the sender of this header has the token."""
        return header is not None and hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())


def _json(content: Mapping[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(content))


def error_answer(status: HTTPStatus, message: str, kind: str) -> Answer:
    """An error, as the specification words it."""
    return Answer(status, json.dumps({"error": {"message": message, "type": kind, "code": status.value}}))


def _unknown(asked: RestRequest) -> Answer:
    return error_answer(HTTPStatus.NOT_FOUND, f"no such endpoint: {asked.method} /v1/{'/'.join(asked.path)}", "NotFound")


@contextmanager
def serve_catalog(catalog: RestCatalog, *, port: int = 0) -> Iterator[str]:
    """Its address, for as long as it is served by threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            version, *path = (unquote(part) for part in split.path.strip("/").split("/"))
            query = {key: values[-1] for key, values in parse_qs(split.query).items()}
            asked = RestRequest(self.command, tuple(path), query, body)
            if not catalog.has_token(self.headers.get("Authorization")):
                answer: Answer | None = error_answer(HTTPStatus.UNAUTHORIZED, "the token is another", "NotAuthorizedException")
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
