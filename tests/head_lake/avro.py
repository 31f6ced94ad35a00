"""Iceberg's metadata in Avro, written again without compression: then a path in it is plain bytes, and another of its length fits in its place.

Sizes stay true: a manifest list says how long each of its manifests is, so lists are read record by record and written again.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_META = {"type": "map", "values": "bytes"}
_LIST_NAME = "manifest_file"


def uncompress(folder: Path) -> None:
    """Every manifest and every list of manifests below the folder; what is uncompressed stays as it is. Times of files stay, too.

    Hadoop's checksums of files that name places go: they would not be those of the files with other names in them."""
    for suffix in ("avro", "json", "puffin"):
        for checksum in folder.rglob(f".*.{suffix}.crc"):
            checksum.unlink()
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*.avro"))}
    lists = {path for path, content in files.items() if _name_of(content) == _LIST_NAME}
    for path in sorted(files.keys() - lists):
        _replace(path, files[path], _file(files[path], lambda _schema, block: block))
    for path in sorted(lists):
        _replace(path, files[path], _file(files[path], lambda schema, block: _with_lengths(schema, block, folder)))


def _replace(path: Path, old: bytes, new: bytes) -> None:
    if new != old:
        times = path.stat()
        path.write_bytes(new)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _name_of(content: bytes) -> str:
    meta = _head(BytesIO(content))
    return str(json.loads(meta["avro.schema"])["name"])


def _head(stream: BytesIO) -> dict[str, bytes]:
    assert stream.read(len(_MAGIC)) == _MAGIC, "an Avro file"
    found: dict[str, bytes] = read(_META, stream)
    return found


def _file(content: bytes, change: Callable[[Any, tuple[int, bytes]], tuple[int, bytes]]) -> bytes:
    stream, out = BytesIO(content), BytesIO()
    meta = _head(stream)
    codec = meta.get("avro.codec", b"null").decode()
    assert codec in ("null", "deflate"), codec
    sync = stream.read(_SYNC_BYTES)
    schema = json.loads(meta["avro.schema"])
    out.write(_MAGIC)
    write(_META, {**meta, "avro.codec": b"null"}, out)
    out.write(sync)
    for count, data in _blocks(stream, sync):
        plain = zlib.decompress(data, wbits=-15) if codec == "deflate" else data
        count, plain = change(schema, (count, plain))
        write("long", count, out)
        write("bytes", plain, out)
        out.write(sync)
    return out.getvalue()


def _blocks(stream: BytesIO, sync: bytes) -> Iterator[tuple[int, bytes]]:
    end = len(stream.getbuffer())
    while stream.tell() < end:
        count, data = read("long", stream), read("bytes", stream)
        assert stream.read(_SYNC_BYTES) == sync, "the end of a block"
        yield count, data


def _with_lengths(schema: Any, block: tuple[int, bytes], folder: Path) -> tuple[int, bytes]:
    """The entries of a list of manifests, each with its manifest's length as it is now; of one that is not there any more, as it was."""
    count, data = block
    source, out = BytesIO(data), BytesIO()
    for _ in range(count):
        entry = read(schema, source)
        place = entry["manifest_path"]
        manifest = folder / place[place.index(f"/{folder.name}/") + len(folder.name) + 2 :]
        if manifest.is_file():
            entry["manifest_length"] = manifest.stat().st_size
        write(schema, entry, out)
    assert source.tell() == len(data), "all of the block was understood"
    return count, out.getvalue()


def read(schema: Any, stream: BytesIO) -> Any:
    """A value by Avro's binary encoding; a union's is (branch, value)."""
    if isinstance(schema, list):
        branch = read("long", stream)
        return branch, read(schema[branch], stream)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "null":
            return None
        case "boolean":
            return stream.read(1) == b"\x01"
        case "int" | "long":
            return _read_number(stream)
        case "float" | "double":
            return stream.read(4 if kind == "float" else 8)
        case "bytes":
            return stream.read(_read_number(stream))
        case "string":
            return stream.read(_read_number(stream)).decode()
        case "fixed":
            return stream.read(schema["size"])
        case "record":
            return {field["name"]: read(field["type"], stream) for field in schema["fields"]}
        case "array":
            return [read(schema["items"], stream) for _ in _counted(stream)]
        case "map":
            return {read("string", stream): read(schema["values"], stream) for _ in _counted(stream)}
        case dict():
            return read(kind, stream)
        case _:
            raise AssertionError(f"Avro's {kind} is not met in Iceberg's metadata")


def _counted(stream: BytesIO) -> Iterator[int]:
    while count := _read_number(stream):
        if count < 0:
            _read_number(stream)  # the bytes of the portion, for those who skip it
        yield from range(abs(count))


def _read_number(stream: BytesIO) -> int:
    found = shift = 0
    while True:
        (byte,) = stream.read(1)
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1)
        shift += 7


def write(schema: Any, value: Any, out: BytesIO) -> None:
    """As `read` reads it."""
    if isinstance(schema, list):
        write("long", value[0], out)
        write(schema[value[0]], value[1], out)
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "null":
            pass
        case "boolean":
            out.write(struct.pack("?", value))
        case "int" | "long":
            _write_number(value, out)
        case "float" | "double" | "fixed":
            out.write(value)
        case "bytes" | "string":
            content = value.encode() if kind == "string" else value
            _write_number(len(content), out)
            out.write(content)
        case "record":
            for field in schema["fields"]:
                write(field["type"], value[field["name"]], out)
        case "array" | "map":
            if value:
                _write_number(len(value), out)
            for item in value:
                if kind == "map":
                    write("string", item, out)
                write(schema["values" if kind == "map" else "items"], value[item] if kind == "map" else item, out)
            _write_number(0, out)
        case dict():
            write(kind, value, out)
        case _:
            raise AssertionError(f"Avro's {kind} is not met in Iceberg's metadata")


def _write_number(value: int, out: BytesIO) -> None:
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.write(bytes((left & 0x7F | 0x80,)))
        left >>= 7
    out.write(bytes((left,)))
