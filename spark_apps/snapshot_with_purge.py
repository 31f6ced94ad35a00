"""Spark application: plan and stage the snapshots and purges of the documents of the topics of one run."""

from message_lifecycle.app.boundary import run_application
from message_lifecycle.app.planning import planning

if __name__ == "__main__":
    run_application(planning(__doc__, work="snapshot_with_purge"))
