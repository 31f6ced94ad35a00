"""A topic of several tables that is deleted whole, on a catalog of its own, without a JVM."""

from __future__ import annotations

from pathlib import Path

from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.layout import COMPACTED
from tests.reclaiming import NAME, Past, past_in

OWN = {NAME.table(), NAME.table(COMPACTED)}


def topic_in(folder: Path, *, ledger_url: str = "sqlite://", **settings: Value) -> Past:
    """A log of five messages in two commits, and a compacted view of two rows."""
    past = past_in(folder, ledger_url=ledger_url)
    past.table(**settings)
    past.append(0, 1, 2, days_old=2)
    past.append(3, 4, days_old=1)
    past.table(COMPACTED)
    past.append(1, 4, days_old=1, kind=COMPACTED)
    return past


def names_in(past: Past, namespace: str) -> set[str]:
    return {place[1] for place, _ in past.tables.pointers.all(namespace)}


def offsets(past: Past, kind: str = "") -> list[int]:
    found = past.catalog.load_table((NAME.namespace, NAME.table(kind))).scan().to_arrow()
    return sorted(found["offset"].to_pylist())
