"""Spark application: limit markers.

With --run alone, the application stages the markers of that run's staged plans, before the gate judges them. With --as-of and --topics, it
first plans and stages a sweep of these topics for missing markers.
"""

import argparse

from message_lifecycle.app.applications import run_application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run whose staged plans get their markers")
    parser.add_argument("--as-of", help="the instant of a sweep, ISO 8601 UTC")
    parser.add_argument("--topics", help="topics to sweep: stream/topic, separated by commas")
    given = parser.parse_args()
    if (given.as_of is None) != (given.topics is None):
        parser.error("--as-of and --topics belong together")
    from message_lifecycle.app.applications import mark_all, plan_and_stage

    if given.topics is None:
        return mark_all(run=given.run)
    topics = given.topics.split(",")
    planned = plan_and_stage(run=given.run, as_of=given.as_of, topics=topics, work="marker_generation")
    return planned or mark_all(run=given.run)


if __name__ == "__main__":
    run_application(main)
