"""Plan and stage the retention of backends' topics for one run. They are no tables: no Spark starts, and Python runs this by itself."""

from message_lifecycle.app.boundary import run_application
from message_lifecycle.app.planning import planning

if __name__ == "__main__":
    run_application(planning(__doc__, work="retention"))
