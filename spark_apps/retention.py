"""Plan and stage the retention of backends' topics for one run. They are no tables: no Spark starts, and Python runs this by itself."""

from message_lifecycle.app.applications import planning, run_application

if __name__ == "__main__":
    run_application(planning(__doc__, work="retention"))
