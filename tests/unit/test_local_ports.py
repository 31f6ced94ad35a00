"""A port is kept as long as it is free, and given up only when someone else has it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from message_lifecycle.local.processes import FIRST_PORT, LAST_PORT, LOOPBACK, choose_port, is_free, kept_port


def test_a_port_is_chosen_once(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = choose_port(file, "postgres")
    assert FIRST_PORT <= first <= LAST_PORT
    assert choose_port(file, "postgres") == first == kept_port(file, "postgres")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_taken_port_is_replaced_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    postgres, airflow = choose_port(file, "postgres"), choose_port(file, "airflow")
    with socket.socket() as other:
        other.bind((LOOPBACK, postgres))
        other.listen()
        assert not is_free(postgres)
        moved = choose_port(file, "postgres")
    assert moved != postgres
    assert json.loads(file.read_text()) == {"postgres": moved, "airflow": airflow}


def test_two_services_never_share_a_port(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    assert len({choose_port(file, f"service {number}") for number in range(50)}) == 50


def test_a_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_text("{")
    assert kept_port(file, "postgres") is None
    assert is_free(choose_port(file, "postgres"))
