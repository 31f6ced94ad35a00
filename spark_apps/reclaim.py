"""Plan the reclaim of topics' space for one run. What goes is seen by no reader: no Spark starts, and Python runs this by itself."""

from message_lifecycle.app.boundary import run_application
from message_lifecycle.app.planning import planning

if __name__ == "__main__":
    run_application(planning(__doc__, work="reclaim"))
