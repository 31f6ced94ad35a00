"""What an engine's failure in the middle of a read means, in words that name the file or the place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from message_lifecycle.sources.errors import UnreadableFile

_FILE = re.compile(r"\[FAILED_READ_FILE[^\]]*\][^\n]*?reading file (?:file:)?/*(/[^\s]+?)\.?(?:\s|$)")


@contextmanager
def named_failures() -> Iterator[None]:
    """Raises UnreadableFile where the engine stopped for such a reason; anything else as it is."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = _whole(error)
        if found := _FILE.search(text):
            raise UnreadableFile(unquote(found.group(1)), _cause(text)) from error
        raise


def _whole(error: Exception) -> str:
    """With the causes, which hold the reason where the message is only that of a failed job."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    texts = [str(error)]
    while java is not None and len(texts) < 10:
        texts.append(str(java.toString()))
        java = java.getCause()
    return "\n".join(texts)


def _cause(text: str) -> str:
    causes = [line.strip() for line in text.splitlines() if line.strip().startswith("Caused by: ")]
    return causes[-1].removeprefix("Caused by: ") if causes else "its content is damaged"
