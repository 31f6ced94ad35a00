"""Spark application: take the files of a folder that a topic has not taken yet, all in one commit."""

import argparse

from message_lifecycle.app.applications import run_application
from message_lifecycle.app.cli.context import WAITS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic", help="stream/topic")
    parser.add_argument("path", help="a file, or a folder of .jsonl, .csv and .parquet files")
    for field in ("key", "value", "append-time", "event-time", "headers", "partition"):
        parser.add_argument(f"--{field}", metavar="FIELD", help=f"field that holds the {field.replace('-', ' ')}")
    for time in ("append-time", "event-time"):
        parser.add_argument(f"--{time}-unit", default="iso", help="iso, s, ms, us or ns")
        parser.add_argument(f"--{time}-format", metavar="FORMAT", help="how it is written, as strptime reads it: '%%d.%%m.%%Y %%H:%%M:%%S'")
    parser.add_argument("--time-zone", metavar="ZONE", help="the zone of times that name none: UTC, +02:00 or Europe/Berlin")
    parser.add_argument("--delimiter", default=",", help="between the fields of a CSV line")
    parser.add_argument("--encoding", default="utf-8", help="how the letters of text files are written, as latin-1")
    parser.add_argument("--shift-to", metavar="DAY", help="move all times by whole days so that the newest ends on this day")
    parser.add_argument("--allow-implausible-times", action="store_true", help="take times before 1990 and after 2099 too")
    parser.add_argument(
        "--skip-changed", action="store_true", help="pass over files that were taken before with other content, and name them"
    )
    parser.add_argument("--include", action="append", default=[], metavar="PATTERN", help="take only files whose name matches; repeatable")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="pass over files whose name matches; repeatable")
    from message_lifecycle.app.cli.screen import render_text
    from message_lifecycle.app.ingest import ingest

    result = ingest(**vars(parser.parse_args()))
    print(render_text(result.screen_blocks()), end="")
    return WAITS if result.refused_batches else 0


if __name__ == "__main__":
    run_application(main)
