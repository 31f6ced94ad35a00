"""A store of tables raises every failure as a named error that says what to do.

A failure may come from a catalog, an object store, a disk or Java. Any public method of a store can meet one, so the store class wraps all
of them in one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import GeneratorType
from typing import Any, TypeVar

from pyiceberg.exceptions import NoSuchTableError

from message_lifecycle.model.errors import table_vanished
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.session import engine_failures

T = TypeVar("T")


class WithNamedErrors:
    """Base class of stores: wraps each public method of a store class and of its subclasses."""

    def __init_subclass__(cls, **given: object) -> None:
        super().__init_subclass__(**given)
        for name, word in list(vars(cls).items()):
            if inspect.isfunction(word) and not name.startswith("_"):
                setattr(cls, name, _named(word))


def _named(word: Callable[..., T]) -> Callable[..., T]:
    @wraps(word)
    def named(*arguments: object, **by_name: object) -> Any:
        with _table_that_is_there(), engine_failures(), reaching_catalog():
            found = word(*arguments, **by_name)
        # A generator meets a failure only later, while the caller reads it.
        return _each(found) if isinstance(found, GeneratorType) else found

    return named


def _each(found: Iterator[T]) -> Iterator[T]:
    with _table_that_is_there(), engine_failures(), reaching_catalog():
        yield from found


@contextmanager
def _table_that_is_there() -> Iterator[None]:
    """Name a table that was there a moment ago. Raises TableVanished."""
    try:
        yield
    except NoSuchTableError as error:
        raise table_vanished(str(error)) from error
