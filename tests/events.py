"""Descriptions of jobs, read from Spark's event log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DESCRIPTION = "spark.job.description"


def event_log(folder: Path) -> Mapping[str, str]:
    """Return Spark's settings for an event log in the folder, as one plain file for each application."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def described_jobs(folder: Path) -> list[str]:
    """Return the descriptions of all jobs of all applications, in order. A job without a description is an empty text."""
    events = [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text(encoding="utf-8").splitlines()]
    return [event["Properties"].get(DESCRIPTION) or "" for event in events if event["Event"] == "SparkListenerJobStart"]
