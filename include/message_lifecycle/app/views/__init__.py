"""The answers: frozen dataclasses that the command prints, as text or JSON, and that the Airflow pages show.

One view serves every reader, so the page and the command cannot differ. In JSON, times are ISO 8601 in UTC, sizes bytes, spans seconds; null
is unknown.
"""

from message_lifecycle.app.views.explanation import explain_message as explain_message
from message_lifecycle.app.views.plans import approval_text as approval_text
from message_lifecycle.app.views.plans import plan_page as plan_page
from message_lifecycle.app.views.plans import plan_view as plan_view
from message_lifecycle.app.views.plans import question_of as question_of
from message_lifecycle.app.views.plans import removal_of as removal_of
from message_lifecycle.app.views.plans import waits_until as waits_until
from message_lifecycle.app.views.state import runs as runs
from message_lifecycle.app.views.state import undone_among as undone_among
from message_lifecycle.app.views.status import status as status
from message_lifecycle.app.views.topics import topic_page as topic_page
