"""Spark application: plan and stage the message cleaner's work for the topics of one run."""

from message_lifecycle.app.applications import planning_main, run_application

if __name__ == "__main__":
    run_application(planning_main(__doc__, work="message_cleaner"))
