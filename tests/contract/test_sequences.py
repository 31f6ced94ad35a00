"""Work of all kinds, one after another, on every store of whole logs: each answers as memory does, step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle_local.worlds import WORLDS
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests import document_sequences, log_sequences
from tests.contract.conftest import MakeWorld, on
from tests.effort import effort, generated
from tests.sequences import Step, begin


@generated
@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
@pytest.mark.parametrize(("kind", "partitions"), [(log_sequences, 2), (document_sequences, 1)], ids=["log", "documents"])
def test_every_step_is_answered_as_by_memory(make_world: MakeWorld, store_kind: str, kind: ModuleType, partitions: int) -> None:
    @given(st.sampled_from(kind.OWN), kind.SEQUENCES)
    @effort(store_kind, 0, on_tables=3)
    def holds(own: dict[str, Value], sequence: Sequence[Step]) -> None:
        world, reference = make_world({}), WORLDS["memory"]({})
        topic = f"t{random.getrandbits(64):x}"
        ours = begin(world, TopicName(stream=f"{world.scratch}.sequences", topic=topic), kind.seen, own, partitions=partitions)
        theirs = begin(reference, TopicName(stream="sequences", topic=topic), kind.seen, own, partitions=partitions)
        for at, step in enumerate(sequence):
            assert ours.step(step) == theirs.step(step), f"step {at} of {own}: {list(sequence)}"

    holds()
