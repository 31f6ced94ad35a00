"""The configuration from `lifecycle.toml` and the environment, read and checked once, at the start.

No other module reads them. The embedded default, if it is set up, sets the environment first.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from message_lifecycle.app.embedded import embedded_default
from message_lifecycle.model.errors import BackendUnavailable, BadInput, InvalidSetting
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME, server_settings
from message_lifecycle.model.topic import SECTION, check_overdue

if TYPE_CHECKING:
    from message_lifecycle.app.backends_config import ConfiguredBackend
    from message_lifecycle.stores.redis_streams.log import Server

LEDGER_URL = "LIFECYCLE_LEDGER_URL"
CONFIG_FILE = "LIFECYCLE_CONFIG"
CATALOG_HOME = "PYICEBERG_HOME"
REDIS_URL, REDIS_PASSWORD_FILE = "LIFECYCLE_REDIS_URL", "LIFECYCLE_REDIS_PASSWORD_FILE"
"""The server of a backend whose configuration names none; the embedded default sets both variables while its own runs."""
DEBUG = "LIFECYCLE_DEBUG"


def missing_configuration() -> BadInput:
    """Return the error for a ledger that neither the environment nor a running embedded default names."""
    return BadInput(
        f"no ledger is configured: {LEDGER_URL} is not set and no embedded default is set up here. Run `make up`, or set {LEDGER_URL}.",
        code="MissingConfiguration",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The input of the wiring: the server's settings, the ledger's address, and the backends next to the lake."""

    server: Mapping[str, Value]
    ledger_url: str
    backends: tuple[ConfiguredBackend, ...] = ()


def config_file() -> Path:
    """`LIFECYCLE_CONFIG`, or include/lifecycle.toml of this project."""
    given = os.environ.get(CONFIG_FILE)
    return Path(given) if given else Path(__file__).resolve().parents[2] / "lifecycle.toml"


def server_settings_file(path: Path | None = None) -> dict[str, Value]:
    """The server's settings. A missing file means the built-in values; a wrong one is an error that names the place."""
    document = {name: content for name, content in _document(path).items() if name != SECTION}
    found, where = server_settings(document, where=(path or config_file()).name), (path or config_file()).name
    check_overdue(found, found, where=f"{where} [status]")
    return found


def backends_file(path: Path | None = None) -> tuple[ConfiguredBackend, ...]:
    """The backends that are no tables, as the same file names them. Raises InvalidSetting."""
    given = _document(path).get(SECTION)
    if given is None:
        return ()
    # Here and not above: pydantic comes with it, and few have a backend.
    from message_lifecycle.app.backends_config import read_backends

    where = path or config_file()
    return read_backends(given, server=server_settings_file(path), where=where.name, folder=where.absolute().parent)


def _document(path: Path | None) -> dict[str, object]:
    where = path or config_file()
    try:
        return tomllib.loads(where.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # the second: this package runs out of a zip on a cluster
        if path is not None or CONFIG_FILE in os.environ:
            raise InvalidSetting(where=str(where), key=CONFIG_FILE, value=str(where), allowed="an existing TOML file") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(where=str(where), key="(the file)", value=str(error), allowed="valid TOML") from error
    except OSError as error:
        raise InvalidSetting(where=str(where), key="(the file)", value=error.strerror, allowed="a file that can be read") from error


def interval_seconds(setting: Literal["interval", "compaction_interval", "snapshots_interval", "reclaim_interval"]) -> int:
    """How often the cleaner, compaction, the purge of documents, or reclaim looks: for the schedule."""
    value = server_settings_file().get(setting, BY_NAME[setting].default)
    assert isinstance(value, int)
    return value


def load_config() -> Config:
    """Load the configuration from the environment, or from the project's embedded default. Raises MissingConfiguration."""
    if LEDGER_URL not in os.environ:
        embedded = embedded_default()
        if embedded:
            embedded.load_environment()
    if LEDGER_URL not in os.environ:
        raise missing_configuration()
    return Config(server=server_settings_file(), ledger_url=os.environ[LEDGER_URL], backends=backends_file())


def named_redis(backend: str) -> Server:
    """Return the Redis server that the environment names. Raises BackendUnavailable if it names no server."""
    from message_lifecycle.stores.redis_streams.log import Server

    url, file = os.environ.get(REDIS_URL), os.environ.get(REDIS_PASSWORD_FILE)
    if not url:
        raise BackendUnavailable(
            backend, "the Redis server of the embedded default does not run", f"Start it: `make up`, or set {REDIS_URL}"
        )
    return Server(name=backend, url=url, password=lambda: Path(file).read_text(encoding="utf-8").strip() if file else None)


def wants_trace() -> bool:
    """`LIFECYCLE_DEBUG=1`: errors are shown with their trace."""
    return os.environ.get(DEBUG, "") not in ("", "0")
