"""Where the secret lies, when it is made, and that a lost or another one is never passed over in silence."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from lifecycle_local.layout import find_layout
from message_lifecycle.app.erasure_secret import (
    SECRET_FILE,
    configured_secret,
    forbidden_keys,
    match_of,
    secret_for_request,
)
from message_lifecycle.app.services import Services
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.erasure import ErasureRequest
from tests.errors import raises
from tests.ledgers import TOPIC


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the embedded secret will lie."""
    monkeypatch.delenv(SECRET_FILE, raising=False)
    monkeypatch.setenv("LIFECYCLE_HOME", str(tmp_path))
    find_layout().secrets.mkdir()
    return find_layout().secrets / "erasure"


@pytest.fixture
def services(embedded: Path) -> Services:
    return replace(memory_world({}).services, key_secret=configured_secret)


def ask(s: Services, key: bytes = b"k", *, name: str = "e1", forbid: bool = True) -> ErasureRequest:
    digests = secret_for_request(s).digests([key])
    return s.ledger.add_erasure(name, digests, topics=(), forbid=forbid, requested_by="ada", why="law")


def test_it_is_made_on_first_need_for_its_owner_alone(services: Services, embedded: Path) -> None:
    assert forbidden_keys(services.ledger, services.key_secret, TOPIC) is None
    assert not embedded.exists(), "nothing is forbidden: nobody needs it"
    with raises("ErasureSecretMissing"):
        configured_secret(False)
    request = ask(services)
    assert stat.S_IMODE(embedded.stat().st_mode) == 0o600
    assert len(embedded.read_bytes().strip()) == 64
    assert match_of(services, [request])(b"k")
    found = forbidden_keys(services.ledger, services.key_secret, TOPIC)
    assert found is not None
    assert (found(b"k"), found(b"l")) == (True, False)


def test_a_lost_one_is_not_made_anew_while_a_digest_is_to_be_compared(services: Services, embedded: Path) -> None:
    request = ask(services)
    embedded.unlink()
    for deed in (
        lambda: ask(services, name="e2"),
        lambda: match_of(services, [request]),
        lambda: forbidden_keys(services.ledger, services.key_secret, TOPIC),
    ):
        with raises("ErasureSecretMissing"):
            deed()
    assert not embedded.exists()
    services.ledger.set_erasure_state("e1", "erased")
    with raises("ErasureSecretMissing"):
        ask(services, name="e2")
    services.ledger.allow_keys_again("e1", by="bob", why="the secret is lost")
    assert ask(services, name="e2").keys.secret != request.keys.secret


def test_a_request_that_waits_and_forbids_nothing_is_asked_again(services: Services, embedded: Path) -> None:
    waiting = ask(services, forbid=False)
    embedded.unlink()
    again = ask(services, name="e2", forbid=False)
    assert again.keys.secret != waiting.keys.secret
    with raises("ErasureSecretChanged"):
        match_of(services, [waiting])
    assert match_of(services, [again])(b"k")


def test_another_one_is_named(services: Services, embedded: Path) -> None:
    request = ask(services)
    embedded.write_text("x" * 64)
    for deed in (
        lambda: ask(services, name="e2"),
        lambda: match_of(services, [request]),
        lambda: forbidden_keys(services.ledger, services.key_secret, TOPIC),
    ):
        with raises("ErasureSecretChanged"):
            deed()


def test_a_cluster_names_its_file_and_none_is_made_there(
    services: Services, embedded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mounted"
    monkeypatch.setenv(SECRET_FILE, str(file))
    with raises("ErasureSecretMissing", match="mounted"):
        ask(services)
    file.write_text("short\n")
    with raises("InvalidErasureSecret"):
        ask(services)
    file.write_text("y" * 40 + "\n")
    assert match_of(services, [ask(services)])(b"k")
    assert not file.with_name("erasure").exists()
    assert not embedded.exists()
