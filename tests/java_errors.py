"""Exceptions of Java's as they reach Python, without a JVM: by py4j; and by PySpark, which makes one of its own of some of Java's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import IllegalArgumentException


def java_error(name: str, status: int | None = None) -> Py4JJavaError:
    """Make an error of Java. `name`: the simple name of its class. `status`: the HTTP status, for an answer of a store."""
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = _of_java(name, status)
    return error


def pyspark_error(name: str) -> Exception:
    """As in a process that knows Spark's SQL."""
    error = IllegalArgumentException.__new__(IllegalArgumentException)  # to make one it asks Spark's Java, and so does its text
    error._origin = _of_java(name, None)
    return error


def _of_java(name: str, status: int | None) -> Any:
    found = MagicMock(**{"toString.return_value": f"org.apache.iceberg.exceptions.{name}: in its words"})
    found.getClass = lambda: SimpleNamespace(getSimpleName=lambda: name)
    found.getMessage = lambda: "in its words"
    found.getCause = lambda: None
    found.getSQLState.side_effect = Py4JError("no such method")
    found.statusCode = MagicMock(return_value=status) if status else MagicMock(side_effect=Py4JError("no such method"))
    return found
