"""The package as a zip for `spark-submit --py-files`: the same code on driver and executors, and the same bytes for the same code."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from message_lifecycle.local.layout import Layout

PACKAGE = Path(__file__).resolve().parents[1]
# A zip holds times of day; with one fixed time equal code gives equal bytes. It is the earliest that the format knows.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def build_py_files(layout: Layout, package: Path = PACKAGE) -> Path:
    """Write the package folder, without caches, as the top level of the zip; replaces the old one only when something changed."""
    part = layout.py_files.with_name(f"{layout.py_files.name}.{os.getpid()}.part")
    sources = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources:
            entry = zipfile.ZipInfo(str(Path(package.name) / path.relative_to(package)), FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    if layout.py_files.is_file() and layout.py_files.read_bytes() == part.read_bytes():
        part.unlink()
        return layout.py_files
    return part.replace(layout.py_files)
