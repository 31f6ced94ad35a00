"""Spark application: plan and stage, for the topics of one run, the purge of what their compacted views cover."""

from message_lifecycle.app.applications import planning, run_application

if __name__ == "__main__":
    run_application(planning(__doc__, work="purge_compacted"))
