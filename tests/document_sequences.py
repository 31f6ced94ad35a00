"""Generated work on the documents of one topic: changes, clients, holds, what removes, and what takes it back."""

from __future__ import annotations

from hypothesis import strategies as st

from message_lifecycle.app import documents
from message_lifecycle.model.document import Change
from message_lifecycle.model.setting_list import Value
from tests.sequences import RELEASE, UNDO, Run, Step, erase, hold, work_of

_PURGING: dict[str, Value] = {"fold": "last_write", "snapshot_interval": 3, "snapshot_threshold": 2, "snapshot_with_purging_changes": True}
OWN: tuple[dict[str, Value], ...] = (
    {**_PURGING, "snapshots_keep": 1, "client_deactivate_after": 10**6},
    {**_PURGING, "snapshots_keep": 2, "client_deactivate_after": 20, "changes_keep_last": 2},
    {**_PURGING, "snapshots_keep": 1, "client_deactivate_after": 30, "changes_max_age": 25},
    {**_PURGING, "snapshot_with_purging_changes": False, "snapshots_keep": 1},
)


def seen(run: Run) -> object:
    """Every document: its state, its clients, its changes and its snapshots."""
    s = run.world.services
    return [
        (
            (state.document, state.seq, state.first, state.snapshots, state.epoch),
            told.clients,
            list(s.documents.changes(run.name, state.document)),
            [(one.server_seq, one.state) for one in s.documents.snapshots(run.name, state.document)],
        )
        for told in sorted(documents.describe(s, run.name), key=lambda told: told.state.document)
        for state in (told.state,)
    ]


def _seq(run: Run, document: str) -> int:
    """The last one given."""
    s = run.world.services
    return next((state.seq for state in s.documents.states(run.name, s.documents.tables(run.name)) if state.document == document), 0)


def _change(document: str, many: int) -> Step:
    def do(run: Run) -> object:
        last = _seq(run, document)
        new = [
            Change(document=document, server_seq=seq, client="x", at=None if seq % 5 == 4 else run.now, payload=b"%d" % seq)
            for seq in range(last + 1, last + 1 + many)
        ]
        return documents.add_changes(run.world.services, run.name, new)

    return Step(f"{many} changes of {document}", do)


def _sync(document: str, client: str, behind: int) -> Step:
    def do(run: Run) -> object:
        seq = max(0, _seq(run, document) - behind)
        done = documents.sync(run.world.services, run.name, document, client=client, server_seq=seq, at=run.now)
        return done.server_seq, done.epoch

    return Step(f"{client} has {document} but {behind}", do)


def _attach(document: str, client: str) -> Step:
    def do(run: Run) -> object:
        return documents.attach(run.world.services, run.name, document, client=client)

    return Step(f"{client} attaches to {document}", do)


def _detach(document: str, client: str) -> Step:
    return Step(f"{client} detaches from {document}", lambda run: documents.detach(run.world.services, run.name, document, client=client))


def _history(document: str) -> Step:
    return Step(f"history of {document}", lambda run: list(documents.history(run.world.services, run.name, document)))


def _purged(document: str, many: int, client: str) -> Step:
    """Make a step that purges as most purges do: changes come, a client gets them, and the next run removes them."""
    turn = (_change(document, many), _sync(document, client, 1), work_of("snapshot_with_purge", 1))
    return Step(f"{turn}", lambda run: [run.step(step) for step in turn])


_DOCUMENT = st.sampled_from(["a", "a", "b"])
_CLIENT = st.sampled_from(["ann", "eve"])
_PURGE = st.builds(work_of, st.just("snapshot_with_purge"), st.integers(0, 20))
_CHANGE = st.builds(_change, _DOCUMENT, st.integers(1, 5))
STEPS: st.SearchStrategy[Step] = st.one_of(
    _CHANGE,
    _CHANGE,
    st.builds(_sync, _DOCUMENT, _CLIENT, st.integers(0, 3)),
    st.builds(_purged, _DOCUMENT, st.integers(3, 5), _CLIENT),
    st.builds(_purged, _DOCUMENT, st.integers(3, 5), _CLIENT),
    st.builds(_purged, _DOCUMENT, st.integers(3, 5), _CLIENT),
    _PURGE,
    UNDO,
    UNDO,
    st.one_of(st.builds(_attach, _DOCUMENT, _CLIENT), st.builds(_detach, _DOCUMENT, _CLIENT), _DOCUMENT.map(_history)),
    st.builds(work_of, st.just("reclaim"), st.integers(0, 20)),
    st.lists(_DOCUMENT.map(str.encode), min_size=1, max_size=3).map(erase),
    _DOCUMENT.map(lambda document: hold(document.encode())),
    RELEASE,
)
SEQUENCES = st.tuples(st.builds(_change, _DOCUMENT, st.integers(3, 6)), st.lists(STEPS, min_size=4, max_size=12)).map(
    lambda found: (found[0], *found[1])
)
