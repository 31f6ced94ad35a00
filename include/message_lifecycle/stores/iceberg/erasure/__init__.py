"""Remove a key from tables: search the files, rewrite them, publish the change, and judge it."""
