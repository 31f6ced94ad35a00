"""The answers: frozen dataclasses that the command prints, as text or JSON, and that the Airflow pages show.

One view serves every reader, so the page and the command cannot differ. In JSON, times are ISO 8601 in UTC, sizes bytes, spans seconds; null
is unknown.
"""
