"""Read the files of a table: few in this process, many in tasks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from message_lifecycle.model.errors import FileUnreadable, LifecycleError
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.table_folder import reason_of
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.engine import Engine

FILES_OF_TASK = 16
"""The number of files in one task. A task takes longer to start than to read a column of several files."""


class HasPath(Protocol):
    """Has the path of a data file."""

    @property
    def path(self) -> str: ...


File = TypeVar("File", bound=HasPath)
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def files_of_tasks(files: Sequence[Item]) -> list[Sequence[Item]]:
    """Return the files of each task, in order."""
    return [files[at : at + FILES_OF_TASK] for at in range(0, len(files), FILES_OF_TASK)]


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Turn an unexpected error of the block into FileUnreadable, which names the file.

    Raises:
        LifecycleError, MemoryError: As in the block.
        FileUnreadable: The block raised another error.
    """
    try:
        yield
    except (LifecycleError, MemoryError):
        raise
    except Exception as error:  # a damaged file may raise any error of a library; Spark would return only the text of its trace
        raise FileUnreadable(path, reason_of(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader(Generic[File, Answer]):
    """Answers a question about each of many files.

    Attributes:
        question: Returns the answer about one file. A task gets a copy of the function and of its object.
        store: The way to the files for a task.
        description: A text that identifies the job for a user.
        failed: Makes the error for a task that failed before it read a file, from the kind and the text of the failure.
    """

    question: Callable[[FileIO, File], Answer]
    store: Store
    description: str
    failed: Callable[[str, str], LifecycleError]

    def read(self, files: Sequence[File], io: FileIO, engine: Callable[[], Engine | None]) -> Iterator[Answer]:
        """Yield the answer about each file, in order.

        Args:
            files: The files.
            io: The way to the files for this process.
            engine: Returns the engine whose tasks read many files. None: this process reads them.

        Raises:
            LifecycleError: The error of the first file without an answer, by tasks as in this process.
        """
        running = engine() if len(files) > FILES_OF_TASK else None
        if running is None:
            for file in files:
                yield self.ask(io, file)
            return
        items = [_Share(self, some) for some in files_of_tasks(files)]
        for found in running.run(items, _read_share, description=self.description):
            if isinstance(found, Failed):
                raise found.error(self.failed)
            yield from found

    def ask(self, io: FileIO, file: File) -> Answer:
        """Return the answer about one file. Raises LifecycleError."""
        with naming_file(file.path):
            return self.question(io, file)


@dataclass(frozen=True, slots=True)
class _Share:
    """The files of one task."""

    reader: FileReader[Any, Any]
    files: Sequence[Any]


def _read_share(share: _Share, _resources: Resources) -> list[Any]:
    """Return the answers about the files of one task."""
    io = share.reader.store.io
    return [share.reader.ask(io, file) for file in share.files]
