"""Spark application: plan and stage the snapshots and purges of the documents of the topics of one run."""

from message_lifecycle.app.applications import planning_main, run_application

if __name__ == "__main__":
    run_application(planning_main(__doc__, work="snapshot_with_purge"))
