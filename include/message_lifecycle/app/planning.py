"""The command line of the Spark applications that plan and stage: one, whatever the operation."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Scheduled


def planning(description: str | None, *, work: Scheduled) -> Callable[[], int]:
    """The main function of the operation's application, for `boundary.run_application`."""

    def main() -> int:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--run", required=True, help="name of the run; the plans are found by it")
        parser.add_argument("--as-of", required=True, help="the instant to judge by, ISO 8601 UTC")
        parser.add_argument("--topics", required=True, help="stream/topic, separated by commas")
        parser.add_argument("--dry-run", action="store_true", help="print the plans and stage nothing")
        given = parser.parse_args()
        from message_lifecycle.app.batch import plan_and_stage

        return plan_and_stage(run=given.run, as_of=given.as_of, topics=given.topics.split(","), dry_run=given.dry_run, work=work)

    return main
