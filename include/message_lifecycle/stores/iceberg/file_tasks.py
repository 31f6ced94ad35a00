"""Read many files in tasks. Few files, and files without an engine, are read by this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.engine import Engine

FILES_OF_TASK = 16
"""A task takes longer to start than to read a column of some files."""

File = TypeVar("File")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader(Generic[File, Answer]):
    """Answers a question about each of many files.

    Attributes:
        answer: Answers it about one file. A task receives the function, and everything that it refers to.
        store: How a task reaches the files.
        description: A text that identifies the job for a user.
        failed: Makes the error for a task that ended with none of our errors, from the kind and the text of its error.
    """

    answer: Callable[[FileIO, File], Answer]
    store: Store
    description: str
    failed: Callable[[str, str], LifecycleError]

    def read(self, files: Sequence[File], io: FileIO, engine: Callable[[], Engine | None]) -> Iterator[Answer]:
        """Yield the answer about each file, in order.

        Args:
            files: The files, with everything that a task must know about them.
            io: The way of this process to the files.
            engine: Returns the engine whose tasks read the files, if more than one task can share them. None: this process reads them.

        Raises:
            LifecycleError: The error of the first file that cannot be answered, as `answer` or `failed` makes it.
        """
        running = engine() if len(files) > FILES_OF_TASK else None
        if running is None:
            for file in files:
                yield self.answer(io, file)
            return
        items = [_Share(self.answer, self.store, files[at : at + FILES_OF_TASK]) for at in range(0, len(files), FILES_OF_TASK)]
        for found in running.run(items, _read_share, description=self.description):
            if isinstance(found, Failed):
                raise found.error(self.failed)
            yield from found


@dataclass(frozen=True, slots=True)
class _Share:
    """The files of one task."""

    answer: Callable[[FileIO, Any], Any]
    store: Store
    files: Sequence[Any]


def _read_share(share: _Share, _resources: Resources) -> list[Any]:
    """Answer the question about the files of one task."""
    io = share.store.io
    return [share.answer(io, file) for file in share.files]
