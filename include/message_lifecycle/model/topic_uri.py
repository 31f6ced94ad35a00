"""Topics as Pulsar names them, `persistent://tenant/namespace/topic`, read as ours (CMP-10).

Tenant and namespace together are the stream, `tenant.namespace`. A tenant has no dot, so that the first dot of the stream parts the
two again, and no two URIs name one topic that NAME-1 does not hold for one. Every stream with a dot inside thus has a URI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from message_lifecycle.model.errors import InvalidTopicUri
from message_lifecycle.model.names import TopicName, normalise_name

SCHEME = "persistent"
_PARTS = 3
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,9})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUri:
    """A topic that was named, and the partition of it that the name spoke of; None: it spoke of none."""

    name: TopicName
    partition: int | None

    @classmethod
    def parse(cls, text: str) -> TopicUri:
        """Read a URI, or `stream/topic` as `TopicName.parse` does, where a suffix is part of the name.

        Raises InvalidTopicUri, InvalidName."""
        scheme, is_uri, rest = text.strip().partition("://")
        if not is_uri:
            return cls(name=TopicName.parse(text), partition=None)
        if scheme != SCHEME:
            raise InvalidTopicUri(text, f"its scheme is {scheme!r}, and only {SCHEME!r} topics are kept")
        parts = rest.split("/")
        if len(parts) != _PARTS:
            raise InvalidTopicUri(text, f"after the scheme it has {len(parts)} part(s) between slashes, not {_PARTS}")
        tenant, namespace = normalise_name(parts[0]), normalise_name(parts[1])
        if "." in tenant:
            raise InvalidTopicUri(text, f"its tenant is {tenant!r}, with a dot")
        suffix = _PARTITION.search(parts[2])
        topic = parts[2] if suffix is None else parts[2][: suffix.start()]
        return cls(
            name=TopicName(stream=normalise_name(f"{tenant}.{namespace}"), topic=normalise_name(topic)),
            partition=None if suffix is None else int(suffix[1]),
        )
