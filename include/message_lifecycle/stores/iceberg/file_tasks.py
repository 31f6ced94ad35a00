"""Read the files of a table: few in this process, many in tasks of an engine."""

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
"""The number of files in one task. A task takes longer to start than to read a column of several files."""

File = TypeVar("File")
Answer = TypeVar("Answer")


def files_of_tasks(files: Sequence[File]) -> list[Sequence[File]]:
    """Return the files of each task, in order."""
    return [files[at : at + FILES_OF_TASK] for at in range(0, len(files), FILES_OF_TASK)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader(Generic[File, Answer]):
    """Answers a question about each of many files.

    Attributes:
        answer: Answers the question about one file. A task gets a copy of the function and of its object.
        store: The way to the files for a task.
        description: A text that identifies the job for a user.
        failed: Makes the error for a failure that has no error of ours, from the kind and the text of the failure.
    """

    answer: Callable[[FileIO, File], Answer]
    store: Store
    description: str
    failed: Callable[[str, str], LifecycleError]

    def read(self, files: Sequence[File], io: FileIO, engine: Callable[[], Engine | None]) -> Iterator[Answer]:
        """Yield the answer about each file, in order.

        Args:
            files: The files, each with the input of the question.
            io: The way to the files for this process.
            engine: Returns the engine whose tasks read many files. None: this process reads them.

        Raises:
            LifecycleError: The error of the first file without an answer, by tasks as in this process.
        """
        running = engine() if len(files) > FILES_OF_TASK else None
        if running is None:
            for file in files:
                yield self.answer_one(io, file)
            return
        items = [_Share(self, some) for some in files_of_tasks(files)]
        for found in running.run(items, _read_share, description=self.description):
            if isinstance(found, Failed):
                raise found.error(self.failed)
            yield from found

    def answer_one(self, io: FileIO, file: File) -> Answer:
        """Answer the question about one file. Raises LifecycleError."""
        try:
            return self.answer(io, file)
        except LifecycleError:
            raise
        except Exception as error:  # a damaged file may raise any error of a library, and Spark would return only the text of its trace
            raise self.failed(type(error).__name__, str(error)) from error


@dataclass(frozen=True, slots=True)
class _Share:
    """The files of one task."""

    reader: FileReader[Any, Any]
    files: Sequence[Any]


def _read_share(share: _Share, _resources: Resources) -> list[Any]:
    """Answer the question about the files of one task."""
    io = share.reader.store.io
    return [share.reader.answer_one(io, file) for file in share.files]
