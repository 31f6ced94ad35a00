"""Every error a person can meet, under one root: what was found, where, what is allowed, what to do.

    LifecycleError          the root, and exit statuses of the `lifecycle` command and of the Spark applications
      BadInput              something that was given is wrong
      Refused               a rule forbids it now
      Unavailable           a system that is needed does not answer

An error that somebody catches is a class below these. Any other is made by a function, `unknown_hold()` a BadInput of the code `UnknownHold`:
a code is what an error is shown by (`code_of`); that of a class is its name.

They lie by area. `given`: names, settings, times, messages; topics, readers, documents, views. `runs`: plans, runs and batches;
holds, undo, files that may not go, erasure. `storage`: Spark, the catalog, tables, disks; backends.
"""

from message_lifecycle.model.errors.given import *  # noqa: F403 - an error is imported from here, wherever it lies
from message_lifecycle.model.errors.runs import *  # noqa: F403 - as above
from message_lifecycle.model.errors.storage import *  # noqa: F403 - as above
