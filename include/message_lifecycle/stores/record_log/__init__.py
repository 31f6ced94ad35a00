"""Logs of single records that are no tables: one store over a small protocol, which files and Redis Streams implement."""
