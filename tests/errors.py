"""Errors as the tests expect them: by the code that a person reads. A class that somebody catches is expected by `pytest.raises` as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from message_lifecycle.model.errors import LifecycleError


def raises(*codes: str, match: str | None = None, kind: type[LifecycleError] = LifecycleError) -> pytest.RaisesExc[LifecycleError]:
    """As `pytest.raises`: an error of one of these codes, and no other. `kind` tells two errors of one code apart."""
    return pytest.raises(kind, match=match, check=lambda error: error.code in codes)


@contextmanager
def suppressed(*codes: str) -> Iterator[None]:
    """As `contextlib.suppress`."""
    try:
        yield
    except LifecycleError as error:
        if error.code not in codes:
            raise
