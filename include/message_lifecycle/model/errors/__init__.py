"""Every error that a person can meet, under one root. An error says what was found, where, what is allowed, and what to do.

    LifecycleError          The root. The exit statuses of the `lifecycle` command and of the Spark applications.
      BadInput              The caller gave something wrong.
      Refused               A rule forbids the request now.
      Unavailable           A needed system does not answer.

An error that somebody catches is a class below these. A function makes any other error: `unknown_hold()` makes a BadInput with the code
`UnknownHold`. Output shows the code of an error (`code_of`). The code of a class is its name.

`given` has names, settings, times, messages, topics, readers, documents and views. `runs` has plans, runs, batches, holds, undo, files that
must stay, and erasure. `storage` has Spark, the catalog, tables, disks and backends.
"""

from message_lifecycle.model.errors.given import *  # noqa: F403 - callers import every error from here
from message_lifecycle.model.errors.runs import *  # noqa: F403 - as above
from message_lifecycle.model.errors.storage import *  # noqa: F403 - as above
