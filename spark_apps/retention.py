"""Application: plan and stage the retention of backends' topics for one run.

Topics in a backend are no tables, so Airflow runs this application with `--without-spark`.
"""

from message_lifecycle.app.applications import planning_main, run_application

if __name__ == "__main__":
    run_application(planning_main(__doc__, work="retention"))
