"""Spark application: plan and stage the erasure of a request's key from the topics of one run.

The argument is the request's id, never the key.
"""

import argparse

from message_lifecycle.app.applications import run_application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run; the plans are found by it")
    parser.add_argument("--as-of", required=True, help="the instant of the run, ISO 8601 UTC")
    parser.add_argument("--topics", required=True, help="stream/topic, separated by commas")
    parser.add_argument("--request", required=True, help="id of the request in the ledger")
    given = parser.parse_args()
    from message_lifecycle.app.applications import plan_and_stage
    from message_lifecycle.model.request import EraseKey

    work = EraseKey(request_id=given.request)
    return plan_and_stage(run=given.run, as_of=given.as_of, topics=given.topics.split(","), work=work)


if __name__ == "__main__":
    run_application(main)
