"""Documents, their changes and their clients."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class NotADocumentTopic(BadInput):
    """What was asked is about documents, and the topic holds messages."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} holds messages, not documents: the setting `fold` makes a document topic, when it is made "
            "(`lifecycle topic create TOPIC --set fold=text_splice`)."
        )


class IsADocumentTopic(BadInput):
    """What was asked is about messages, and the topic holds changes of documents."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} holds changes of documents: messages are neither read from it nor removed. Its changes go by "
            "`snapshot_with_purge`; read it with `lifecycle document pull` and `lifecycle document history`."
        )


class UnknownDocument(BadInput):
    """No change of the document was ever stored."""

    def __init__(self, topic: str, document: str) -> None:
        self.topic, self.document = topic, document
        super().__init__(f"topic {topic} has no document {document}. `lifecycle document describe {topic}` lists those it has.")


class InvalidServerSeq(BadInput):
    """A server_seq that is not the next one (SNP-1), or that the document has not reached (SNP-2)."""

    def __init__(self, document: str, found: int, allowed: str) -> None:
        self.document, self.found = document, found
        super().__init__(f"document {document}: server_seq {found}; allowed: {allowed}. Nothing was stored.")


class EpochMismatch(Refused):
    """What the client stands on was purged: it must take the document anew (SNP-7)."""

    def __init__(self, document: str, client: str | None, brought: int, epoch: int, reason: str) -> None:
        self.document, self.client, self.brought, self.epoch = document, client, brought, epoch
        super().__init__(
            f"document {document}: {'a client' if client is None else f'client {client}'} brings epoch {brought}, the document is at "
            f"epoch {epoch}: {reason}. Attach again (`lifecycle document attach`), which starts from the snapshot; edits that were not "
            "pushed must be made again on it."
        )


class InvalidChange(BadInput):
    """A change that its fold cannot apply: it blocks its document (SNP-10)."""

    def __init__(self, document: str, server_seq: int, reason: str) -> None:
        self.document, self.server_seq, self.reason = document, server_seq, reason
        super().__init__(f"document {document}, server_seq {server_seq}: the fold cannot apply this change: {reason}")


class InvalidChangeLine(BadInput):
    """A line of a file of changes that is not one change."""

    def __init__(self, place: str, field: str, found: str, allowed: str) -> None:
        self.place, self.field, self.found = place, field, found
        super().__init__(f"{place}: {field}: found {found}; allowed: {allowed}. Nothing was stored.")
