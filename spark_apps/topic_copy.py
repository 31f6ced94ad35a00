"""Spark application: copy new messages from the origins of sources and mirrors. A failed replica stops no other replica."""

import argparse

from message_lifecycle.app.applications import run_application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", required=True, help="stream/topic of the replicas, separated by commas; each after its own origin")
    given = parser.parse_args()
    from message_lifecycle.app.applications import copy_all

    return copy_all(topics=given.topics.split(","))


if __name__ == "__main__":
    run_application(main)
