"""Errors as the tests expect them: by the code that a person reads. If code catches a class, `pytest.raises` expects that class as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from message_lifecycle.model.errors import LifecycleError


def raises(*codes: str, match: str | None = None, kind: type[LifecycleError] = LifecycleError) -> pytest.RaisesExc[LifecycleError]:
    """Expect an error with one of these codes, as `pytest.raises` does. `kind`: the error's class, if two classes share a code."""
    return pytest.raises(kind, match=match, check=lambda error: error.code in codes)


@contextmanager
def suppressed(*codes: str) -> Iterator[None]:
    """As `contextlib.suppress`."""
    try:
        yield
    except LifecycleError as error:
        if error.code not in codes:
            raise
