"""Spark application: Great Expectations judges every staged plan of one run."""

import argparse

from message_lifecycle.app.applications import run_application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run whose plans are judged")
    given = parser.parse_args()
    from message_lifecycle.app.applications import gate_all

    return gate_all(run=given.run)


if __name__ == "__main__":
    run_application(main)
