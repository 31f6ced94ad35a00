"""Parts of the services. A part is typed, and may be created at its first use, because a command uses only a few of the wired parts."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar, overload

from message_lifecycle.model.errors import unsupported_limit
from message_lifecycle.model.topic import Backend

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Whole = TypeVar("Whole", bound="DataclassInstance")


class Later(Generic[T]):
    """A part that is made once, at its first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    @cached_property
    def part(self) -> T:
        return self._make()


class HasBackend(Protocol):
    """An object with a backend."""

    @property
    def backend(self) -> Backend: ...


class OptionalPart(Generic[T]):
    """A field of a dataclass, whose value may be given as `Later`. None, the default: the backend has no such part."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, services: HasBackend | None, owner: type, /) -> T | None:
        if services is None:
            return None  # the field's default, when `dataclass` reads it from the class
        found: T | Later[T] | None = services.__dict__[self._name]
        if isinstance(found, Later):
            found = services.__dict__[self._name] = found.part
        return found

    def __set__(self, services: HasBackend, value: T | Later[T] | None, /) -> None:
        services.__dict__[self._name] = value


class Part(OptionalPart[T]):
    """An OptionalPart without a default. Reading a part that the backend does not have raises UnsupportedLimit (RET-6)."""

    @overload
    def __get__(self, services: None, owner: type, /) -> NoReturn: ...
    @overload
    def __get__(self, services: HasBackend, owner: type, /) -> T: ...
    def __get__(self, services: HasBackend | None, owner: type, /) -> T:
        if services is None:
            raise AttributeError(self._name)  # so a dataclass learns that the field has no default
        found = super().__get__(services, owner)
        if found is None:
            raise unsupported_limit(
                backend=services.backend, limit=self._name, where="a log of single records", allowed="reading and retention"
            )
        return found


def with_parts(services: Whole, **parts: object) -> Whole:
    """Return a copy with other parts. `dataclasses.replace` would make every part, and reads none that the backend does not have."""
    found = copy(services)
    assert parts.keys() <= {one.name for one in fields(found)}, parts.keys()
    found.__dict__.update(parts)
    return found
