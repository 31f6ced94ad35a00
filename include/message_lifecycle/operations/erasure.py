"""The erasure of a request's keys from a topic's tables, as a plan (DEL-7, DEL-8, CMP-8).

The erasure removes every byte of the keys: rows that readers see, rows that are marked as removed, and rows that only history names. The
history therefore ends. The plan names rows by (partition, offset) and files; it contains no key.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from message_lifecycle.model.change import EraseRows, Rewrite
from message_lifecycle.model.erasure import BASE64, TABLE_KINDS, ErasureOf, KeySearchResult, Matches, the_keys
from message_lifecycle.model.in_values import Needle
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Expected, Plan, Requirements
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.planning import empty_plan, view_requirements


def plan(
    topic: TopicName,
    requirements: Requirements,
    policy: Policy,
    request: ErasureOf,
    found: Sequence[KeySearchResult],
    *,
    as_of: Instant,
) -> Plan:
    """Plan the erasure. The plan is empty if no table holds a key, and then history stays.

    Args:
        topic: The topic to erase the keys from.
        requirements: The conditions that must still hold at the commit.
        policy: The topic's policy.
        request: The id of the request, and the keyed hashes of its keys.
        found: The files with a key in every table of the topic, the log first.
        as_of: The instant of the plan.
    """
    log = found[0]
    view = next((table for table in found if TABLE_KINDS[table.table].of_log), None)
    concerned = [table for table in found if not table.clean]
    # The log's commit carries the plan, also where the key is left in the view alone.
    chosen = [table for table in found if table is log or table in concerned] if concerned else []
    live, keys = sum(file.live for file in log.files), the_keys(len(request.digests))
    return replace(
        empty_plan("erasure", topic, policy, requirements, as_of=as_of),
        # In the order of their commits: the view first (PRG-1).
        changes=tuple(_change(table) for table in reversed(chosen)),
        expected=Expected(
            rows_in=log.rows,
            removed=(("erased", live),) if live else (),
            removed_bytes=None,
            bytes_in=log.size_bytes,
            segments=0,
        ),
        warnings=() if concerned else ("no file of the topic's tables holds a requested key; keys are compared byte by byte",),
        asks=tuple(_question(table, keys) for table in chosen),
        view=None if view is None or view not in chosen else view_requirements(view),
        erasure=request,
    )


def _change(table: KeySearchResult) -> Rewrite:
    return Rewrite(
        table=table.table,
        table_uuid=table.table_uuid,
        rows=tuple(
            EraseRows(
                partition=file.partition, base_offset=file.base_offset, file=file.name, offsets=file.offsets, rows=file.rows, live=file.live
            )
            for file in table.files
            if file.needed
        ),
        refs=table.refs,
        undo=table.undo,
        snapshots=table.snapshots,
        files=tuple(file.name for file in table.files if not file.needed),
    )


def _question(table: KeySearchResult, keys: str) -> str:
    rewritten, rows = sum(file.needed for file in table.files), sum(file.rows for file in table.files)
    return (
        f"erases {keys} from {TABLE_KINDS[table.table].words}: {amount(rows, 'rows')} in {amount(len(table.files), 'files')}, {rewritten:,} "
        f"rewritten. Time travel to {amount(len(table.snapshots), 'snapshots')} ends, also for current readers. Earlier removals keep their "
        "undo, without these rows"
    )


# The search for erased keys in a record that is not a message: a damaged line, or the raw text of a refused row.
#
# Only the keyed hashes of the keys are known, so the search hashes every part of the record that can be a key: the parts of a JSON record;
# otherwise each string, field and word, and every part of a short record.


WHOLE_SEARCH_BYTES = 256
"""The search tries every part of a shorter record that is not JSON: up to 33,000 parts, 30 ms."""
_WHOLE = BASE64.encode()
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)(?:"|$)')
_FIELD = re.compile(rb"[^,;\t|]+")
_STANDARD = bytes.maketrans(b"-_", b"+/")
"""Translates the URL-safe letters of base64."""
_WORD = re.compile(rb"[^\s\"'`,;:|=\[\](){}<>]+")


def is_only_inside(record: bytes, needle: Needle) -> bool:
    """Return True if the record holds a key only inside a larger part. An erasure removes records that hold a key as a whole part."""
    return needle.is_in_text(record.decode("utf-8", "surrogateescape")) and not tells_key(record, needle.keys.__contains__)


def tells_key(record: bytes, matches: Matches) -> bool:
    """Return True if a part of the record is one of the keys, plain or in base64. A record may be base64 as a whole."""
    seen = set[bytes]()
    for part in chain(_parts(record), *map(_parts, _texts_in_base64(record))):
        if part not in seen:
            seen.add(part)
            if matches(part):
                return True
    return False


def _texts_in_base64(record: bytes) -> Iterator[bytes]:
    if record.startswith(_WHOLE):
        with suppress(binascii.Error):
            yield base64.b64decode(b"".join(record.removeprefix(_WHOLE).split()), validate=True)


def _parts(record: bytes) -> Iterator[bytes]:
    try:
        # A field that comes twice counts twice, and a number is what is written.
        found = json.loads(record, object_pairs_hook=list, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        yield from _texts_in_text(record)
    else:
        yield from _texts_in_json(found)


def _texts_in_json(value: object) -> Iterator[bytes]:
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield from _possible_spellings(text.encode("utf-8", "surrogatepass"))
            case list(contents) | tuple(contents):
                left += contents
            case _:
                pass  # true, false and null


def _texts_in_text(record: bytes) -> Iterator[bytes]:
    yield from _possible_spellings(record)
    yield from _possible_spellings(record.strip())
    for quoted in _QUOTED.findall(record):
        yield from _possible_spellings(quoted)
        try:
            yield from _possible_spellings(json.loads(b'"' + quoted + b'"').encode("utf-8", "surrogatepass"))
        except ValueError:
            continue  # torn within an escape: as it stands it was tried above
    for field in _FIELD.findall(record):
        yield from _possible_spellings(field)
        yield from _possible_spellings(field.strip())
        yield from _possible_spellings(field.strip().strip(b"\"'"))
    for word in _WORD.findall(record):
        yield from _possible_spellings(word)
    if len(record) <= WHOLE_SEARCH_BYTES:
        for start in range(len(record)):
            for end in range(start + 1, len(record) + 1):
                yield record[start:end]


def _possible_spellings(text: bytes) -> Iterator[bytes]:
    """Return the text, and its content if it is base64 of any form: a damaged line may lack padding."""
    yield text
    plain = b"".join(text.split()).rstrip(b"=").translate(_STANDARD)
    if not plain:
        return  # white space tells no key, not the empty one either
    try:
        yield base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return
