"""What compaction plans from: the log, the view, what lies between, and how far readers are behind (CMP-1, CMP-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.app.sparing import holds_of, ids_of
from message_lifecycle.app.view_copies import at_risk
from message_lifecycle.model.errors import CompactedTableMissing, HorizonBeyondLog
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.barriers import barriers
from message_lifecycle.operations.compaction import CompactionFacts

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def compaction_facts(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> CompactionFacts:
    """Raises CompactedTableMissing where a view was published and is gone, HorizonBeyondLog."""
    log, view = s.reader.log(name), s.views.view(name)
    accepted = s.ledger.accepted_view(name)
    if view is None and accepted is not None:
        raise CompactedTableMissing(str(name), "it was published before, and its table is not there any more")
    horizons = {} if view is None else view.horizons
    for partition, horizon in sorted(horizons.items()):
        end = log.end_offsets.get(partition, 0)
        if horizon >= end:
            raise HorizonBeyondLog(str(name), partition, horizon, end)
    tails, holds = tuple(s.views.tails(log, horizons, as_of=as_of)), holds_of(s, name)
    return CompactionFacts(
        log=log,
        view=view,
        tails=tails,
        heeded=ids_of(holds),
        waits=() if view is None else at_risk(s, log, view, tails, policy, as_of=as_of, holds=holds),
        lag_us=_lag(s, log, policy, as_of) if policy.delete_retention_us else 0,
        accepted=None if accepted is None else tuple(sorted(accepted.items())),
    )


def _lag(s: Services, log: LogState, policy: Policy, as_of: Instant) -> int:
    """Age of the oldest message that a registered consumer has not read; 0: all is read (CMP-7)."""
    oldest = as_of
    for reader in barriers(s.ledger.consumers(log.topic), policy, as_of).readers:
        for partition in log.end_offsets:
            start = reader.bound(partition).offset or 0
            unread = next(iter(s.reader.messages(log.topic, partition=partition, start=start)), None)
            if unread is not None and unread.append_time is not None:
                oldest = min(oldest, unread.append_time)
    return as_of - oldest
