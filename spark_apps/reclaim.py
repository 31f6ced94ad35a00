"""Plan the reclaim of topics' space for one run. What goes is seen by no reader: no Spark starts, and Python runs this by itself."""

from message_lifecycle.app.applications import planning, run_application

if __name__ == "__main__":
    run_application(planning(__doc__, work="reclaim"))
