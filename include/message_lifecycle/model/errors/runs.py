"""Plans, runs and batches: what is open, answered, or overtaken."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class UnknownPlan(BadInput):
    """No plan of that id in the ledger."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"plan {plan_id!r} is not in the ledger. `lifecycle ledger list` shows the plans that are.")


class AmbiguousPlan(BadInput):
    """The beginning of a plan id that more than one plan has."""

    def __init__(self, plan_id: str, found: tuple[str, ...]) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(f"plan {plan_id!r} is not one plan: {', '.join(found)} begin with it. Give more of the id.")


class OpenPlan(Refused):
    """DEL-1: a topic has at most one open plan."""

    def __init__(self, topic: str, plan_id: str, since: str) -> None:
        self.topic, self.plan_id, self.since = topic, plan_id, since
        super().__init__(
            f"topic {topic!r} has an open plan, {plan_id}, since {since}. Finish it (`lifecycle approve`, `publish`, `verify`) or let the next run do it."
        )


class AlreadyAnswered(Refused):
    """DEL-3: a person's word on a plan is given once."""

    def __init__(self, plan_id: str, granted: bool, by: str, at: str) -> None:
        self.plan_id, self.granted, self.by, self.at = plan_id, granted, by, at
        super().__init__(
            f"plan {plan_id} was {'approved' if granted else 'refused'} by {by} at {at} already. That answer stands; a new run makes a new plan."
        )


class OwnRequest(Refused):
    """The setting `approver_is_not_requester`: nobody approves what they asked for."""

    def __init__(self, plan_id: str, by: str) -> None:
        self.plan_id, self.by = plan_id, by
        super().__init__(
            f"plan {plan_id} was asked for by {by}, and approver_is_not_requester is set: somebody else approves it. It still waits."
        )


class UnnamedApproval(BadInput):
    """DEL-3: an approval names the person who gave it."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(f"the answer to plan {plan_id} names nobody. Give the name of the authenticated user.")


class NotReady(Refused):
    """A verb was asked out of order: the plan has not been through the step before."""

    def __init__(self, plan_id: str, found: str, needed: str) -> None:
        self.plan_id, self.found, self.needed = plan_id, found, needed
        super().__init__(f"plan {plan_id} is {found}; this step needs {needed}.")


class PlanConflict(Refused):
    """The table changed in a way the plan does not allow; it must be planned again (the fence, DEL-4)."""

    def __init__(self, plan_id: str, reason: str, rival: str | None = None) -> None:
        self.plan_id, self.reason, self.rival = plan_id, reason, rival
        super().__init__(f"plan {plan_id} no longer fits the table: {reason}. Plan again: `lifecycle run`.")


class TopicBusy(Refused):
    """Another run holds the topic's lock."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"another run works on topic {topic!r} now. Wait for it (`lifecycle status`), then try again.")


class LedgerMismatch(Refused):
    """The ledger is not the one the table was written with, or an older state of it; every deletion is refused."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"topic {topic!r}: {reason}. No deletion runs with a ledger that may have forgotten consumers, holds or approvals. "
            "Point LIFECYCLE_LEDGER_URL at the right ledger or restore its newest backup, "
            "or take this ledger on knowingly: `lifecycle ledger accept TOPIC`."
        )


class ChangedFile(Refused):
    """A file that was ingested before has other content now; taking it again would store its messages twice, or mix two files."""

    def __init__(self, topic: str, path: str, batch_id: str) -> None:
        self.topic, self.path, self.batch_id = topic, path, batch_id
        super().__init__(
            f"{path!r} was ingested into topic {topic!r} before (batch {batch_id}) with other content. "
            "A file is taken once: put new messages into a file of a new name."
        )


class RepeatedFile(BadInput):
    """One batch names a file twice."""

    def __init__(self, topic: str, path: str) -> None:
        self.topic, self.path = topic, path
        super().__init__(f"{path!r} is named twice in one batch for topic {topic!r}. Name each file once.")


class OpenBatch(Refused):
    """An ingest of the topic was cut off; whether its commit is in the table must be found out first."""

    def __init__(self, topic: str, batch_id: str, since: str) -> None:
        self.topic, self.batch_id, self.since = topic, batch_id, since
        super().__init__(
            f"topic {topic!r} has an open batch, {batch_id}, since {since}. Finish it if the table holds its commit, else abandon it; `lifecycle ingest` does so."
        )


class UnknownBatch(BadInput):
    """No such batch in the ledger."""

    def __init__(self, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(f"batch {batch_id!r} is not in the ledger.")


class BatchNotOpen(Refused):
    """A batch that has ended cannot end in another way."""

    def __init__(self, batch_id: str, found: str) -> None:
        self.batch_id, self.found = batch_id, found
        super().__init__(f"batch {batch_id!r} is {found}; only an open one can be finished or abandoned.")
