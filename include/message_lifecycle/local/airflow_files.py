"""Files that Airflow's processes share: secrets and logins, made once, readable by their owner alone."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.private_files import secret, write_private

# As in airflow.cfg: the role decides what the user may do.
USERS = ("admin", "viewer")
PASSWORD_BYTES = 12
FERNET_BYTES = 32


def logins_file(layout: Layout) -> Path:
    """User names and passwords of the UI, as JSON."""
    return layout.secrets / "airflow-logins.json"


def password_of(layout: Layout, user: str) -> str:
    """The password of one user of the UI."""
    return str(json.loads(logins_file(layout).read_text(encoding="utf-8"))[user])


def ensure_files(layout: Layout) -> None:
    """Create what is missing; what is there stays, so that sessions and tokens outlive a restart."""
    secret(layout.secrets / "airflow-jwt")
    secret(layout.secrets / "airflow-session")
    fernet = layout.secrets / "airflow-fernet"
    if not fernet.is_file():
        write_private(fernet, base64.urlsafe_b64encode(secrets.token_bytes(FERNET_BYTES)).decode())
    if not logins_file(layout).is_file():
        passwords = {user: secrets.token_urlsafe(PASSWORD_BYTES) for user in USERS}
        write_private(logins_file(layout), json.dumps(passwords, indent=2) + "\n")
