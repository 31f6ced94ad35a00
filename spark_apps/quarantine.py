"""Spark application: plan and stage, for the topics of one run, the removal of quarantine rows that have reached their age."""

from message_lifecycle.app.boundary import run_application
from message_lifecycle.app.planning import planning

if __name__ == "__main__":
    run_application(planning(__doc__, work="quarantine"))
