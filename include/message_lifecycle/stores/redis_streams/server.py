"""A connection to Redis, and its errors as ours: what is away is Unavailable, what was sent and not answered may have been done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from message_lifecycle.model.errors import BackendUnavailable, CommitUnknown, foreign_key

ANSWER_SECONDS = 60.0
"""A script that trims a million entries keeps the server for less than a second; the rest is for slow networks."""
CONNECT_SECONDS = 5.0


def _no_password() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is and how to enter; the password is asked for when a client is made. `name`: of the backend, for errors."""

    name: str
    url: str
    username: str | None = None
    password: Callable[[], str | None] = _no_password
    ca_file: Path | None = None

    def connect(self) -> redis.Redis:
        """A client that has not connected yet."""
        tls = {"ssl_ca_certs": str(self.ca_file)} if self.ca_file is not None else {}
        client = redis.Redis.from_url(
            self.url, username=self.username, password=self.password(),
            # The library's own way of trying again would send a command twice that may have been carried out.
            retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_SECONDS, socket_connect_timeout=CONNECT_SECONDS, protocol=2, **tls,
        )  # fmt: skip
        # As pairs in their order: a message may have one header twice, of which the library's dictionary would keep one.
        client.set_response_callback("XRANGE", lambda entries, **_: entries)
        return client


@contextmanager
def named_errors(backend: str, topic: str, key: str, *, doing: str | None = None) -> Iterator[None]:
    """Errors of the library under our names. `doing`: what changes something; without an answer nobody knows whether it was done.

    Raises BackendUnavailable, CommitUnknown, ForeignKey."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise BackendUnavailable(backend, f"it refuses us: {error}", "Check username and password of the backend") from error
    except NoPermissionError as error:
        raise BackendUnavailable(backend, f"this user may not do that: {error}", "Grant the user the topic's keys and commands") from error
    except (redis.ReadOnlyError, redis.OutOfMemoryError, redis.BusyLoadingError) as error:
        raise BackendUnavailable(backend, str(error), "Nothing was changed; try again when it is mended") from error
    except redis.InvalidResponse as error:
        raise BackendUnavailable(backend, f"what answers there is no Redis: {error}", "Check its address") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        if doing is not None:
            raise CommitUnknown(doing) from error
        raise BackendUnavailable(backend, str(error), "Check its address, and that it runs") from error
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise foreign_key(topic, key, "is of another type than a topic's") from error
        if "NOAUTH" in str(error):
            raise BackendUnavailable(backend, f"it refuses us: {error}", "Check username and password of the backend") from error
        raise
