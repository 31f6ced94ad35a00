"""What people look at, as plain JSON-able values: the command line prints them, the Airflow pages show them.

One view serves every reader, so what the page says and what the command says cannot differ. Times are ISO 8601 in UTC, sizes
bytes, spans seconds; null is unknown.
"""

from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.app.views.outcomes import outcome_view, runs
from message_lifecycle.app.views.plans import (
    approval_text,
    plan_page,
    plan_view,
    question_of,
    record_view,
    removal_of,
    waits_until,
)
from message_lifecycle.app.views.state import status, topic_status
from message_lifecycle.app.views.topics import consumers_view, settings_view, topic_page

__all__ = [
    "approval_text",
    "consumers_view",
    "explain_message",
    "outcome_view",
    "plan_page",
    "plan_view",
    "question_of",
    "record_view",
    "removal_of",
    "runs",
    "settings_view",
    "status",
    "topic_page",
    "topic_status",
    "waits_until",
]
