"""Every topic's state for Prometheus: the values that `status` shows, in its text format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from message_lifecycle.app.views.status import ObligationView, StatusView
from message_lifecycle.model.instants import MICROS_PER_SECOND

_OF_ONE = ("topic", "kind")
METRICS: Final = (
    ("lifecycle_topic_ok", "1 if the topic is ok, else 0.", ("topic",)),
    ("lifecycle_obligation_late", "1 if the obligation is due for longer than max_overdue, else 0.", _OF_ONE),
    ("lifecycle_obligation_due", "The due amount that nothing holds.", (*_OF_ONE, "unit")),
    ("lifecycle_obligation_held", "The due amount that the holder keeps.", (*_OF_ONE, "holder")),
    ("lifecycle_obligation_due_since_seconds", "The time since which the work is due, in seconds since 1970.", _OF_ONE),
    ("lifecycle_obligation_last_run_seconds", "The time of the last run with an outcome, in seconds since 1970.", _OF_ONE),
    ("lifecycle_topic_refused_rows", "The number of refused rows in the topic's quarantine.", ("topic",)),
)
"""Name, text and labels of each metric."""


def exposition(status: Sequence[StatusView]) -> str:
    """Return the metrics as text. An unknown value has no sample, because a missing time is not zero."""
    registry = CollectorRegistry()
    ok, late, amount, held, since, ran, refused = (Gauge(name, text, labels, registry=registry) for name, text, labels in METRICS)
    for topic in status:
        if topic.refused:
            refused.labels(topic.topic).set(topic.refused.rows)
        ok.labels(topic.topic).set(int(topic.ok))
        # A topic may have several questions and erasures. For each kind, report the sum of the amounts and the earliest time.
        obliged = sorted(topic.obligations or (), key=lambda one: one.kind)
        for kind, ones in groupby(obliged, key=lambda one: one.kind):
            _set_gauges(str(topic.topic), kind, list(ones), late=late, amount=amount, held=held, since=since, ran=ran)
    return generate_latest(registry).decode()


def _set_gauges(
    topic: str, kind: str, ones: Sequence[ObligationView], *, late: Gauge, amount: Gauge, held: Gauge, since: Gauge, ran: Gauge
) -> None:
    late.labels(topic, kind).set(int(any(one.state == "late" for one in ones)))
    for one in ones:
        if one.amount is not None:
            amount.labels(topic, kind, one.unit).inc(one.amount)
        for entry in one.held:
            held.labels(topic, kind, entry.holder).inc(entry.messages)
    if times := [one.due_since for one in ones if one.due_since is not None]:
        since.labels(topic, kind).set(min(times) / MICROS_PER_SECOND)
    if times := [one.last_run.at for one in ones if one.last_run is not None]:
        ran.labels(topic, kind).set(max(times) / MICROS_PER_SECOND)
