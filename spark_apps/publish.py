"""Spark application: publish the plans of one run that passed their gate, each in one fenced commit."""

import argparse

from message_lifecycle.app.applications import run_application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--plan", help="only this plan (one that a person has answered)")
    given = parser.parse_args()
    from message_lifecycle.app.applications import publish_all

    return publish_all(run=given.run, plan_id=given.plan)


if __name__ == "__main__":
    run_application(main)
