"""When a driver takes its cluster for lost."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from message_lifecycle.stores.iceberg.cluster_watch import LossDetector, answers

LIMIT = 10.0


def lost(*seen: tuple[float, int, bool], keeps: bool = True) -> list[bool]:
    """`seen`: when, executors, whether a master answers."""
    detector = LossDetector(limit_seconds=LIMIT, keeps_executors=keeps)
    return [detector.is_lost(at, executors=executors, master_answers=answers) for at, executors, answers in seen]


def test_a_cluster_is_lost_where_neither_master_nor_executors_are_seen_for_as_long_as_is_said() -> None:
    assert lost((0, 2, True), (5, 0, False), (14.9, 0, False), (15, 0, False)) == [False, False, False, True]


def test_executors_need_no_master() -> None:
    assert lost((0, 2, True), (5, 2, False), (100, 1, False)) == [False, False, False]


def test_a_master_that_was_started_anew_does_not_know_the_driver() -> None:
    assert lost((0, 2, True), (5, 0, True), (15, 0, True))[-1]


@pytest.mark.parametrize(("had", "keeps"), [(0, True), (2, False)], ids=["waits its turn", "gives them back when it has no work"])
def test_a_driver_without_executors_has_lost_nothing_while_the_master_answers(had: int, keeps: bool) -> None:
    assert not any(lost((0, had, True), (5, 0, True), (100, 0, True), keeps=keeps))


def test_what_comes_back_in_time_was_not_lost() -> None:
    assert not any(lost((0, 1, True), (5, 0, False), (14, 1, False), (15, 0, False), (24, 0, False)))


def test_one_of_several_masters_is_enough() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        assert answers(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    assert not answers(f"spark://127.0.0.1:1,127.0.0.1:{port}")
