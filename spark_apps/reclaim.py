"""Application: plan the reclaim of topics' space for one run. The removed files have no visible rows, so Airflow uses `--without-spark`."""

from message_lifecycle.app.applications import planning_main, run_application

if __name__ == "__main__":
    run_application(planning_main(__doc__, work="reclaim"))
