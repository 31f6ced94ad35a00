"""Application: plan and stage the retention of backends' topics for one run. They are no tables, so Airflow runs this with `--without-spark`."""

from message_lifecycle.app.applications import planning, run_application

if __name__ == "__main__":
    run_application(planning(__doc__, work="retention"))
