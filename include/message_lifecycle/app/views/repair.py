"""The state of a topic's log that its witnesses know, and the changes of a repair (MSG-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from message_lifecycle.app.rendering import Block, Heading, Line, Notes, Number, Rows, Table, View, source
from message_lifecycle.app.witness import MissingTable, Repair
from message_lifecycle.app.wording import end_offsets_text
from message_lifecycle.model.names import TopicName


class TableState(View):
    """One table of the topic. `offsets`: which offsets its witnesses know."""

    table_: str = source("table")
    kind: str = source(make=lambda kind: kind or "log")
    offsets: str
    problem: str | None = source(make=lambda problem: problem or None)
    rolled_back: bool
    head: Number | None = source("head_id")
    offsets_by_witness: Mapping[str, Mapping[int, int] | None] = source("witnesses", dict)
    offsets_after_repair: Mapping[int, int] = source("offsets")
    repaired: bool

    def screen_blocks(self) -> Iterator[Block]:
        yield Heading(f"{self.table_}: {self.offsets} of each witness")
        known = {who: "missing" if found is None else end_offsets_text(found) or "none" for who, found in self.offsets_by_witness.items()}
        rows = (*known.items(), ("after a repair", end_offsets_text(self.offsets_after_repair) or "none"))
        yield Rows(Table(columns={"witness": lambda one: one[0], self.offsets: lambda one: one[1]}), rows)
        if self.repaired:
            yield Line("Repaired: the table and the ledger have this state now.", wraps=True)
        elif self.problem:
            yield Notes([self.problem], style="red")
        else:
            yield Line("The witnesses agree.", wraps=True)


class SetBack(View):
    """A consumer whose progress was set back. `from_`: its progress before."""

    consumer: str
    partition: Number
    from_: Number

    table = Table(
        columns={"consumer": "consumer", "partition": "partition", "was at": "from_"},
        title="Consumers set back to what they have read and is still there",
    )


def _names(tables: Sequence[MissingTable]) -> tuple[str, ...]:
    return tuple(map(str, tables))


class RepairView(View):
    """The result of a repair."""

    topic: TopicName
    ok: bool
    tables: tuple[TableState, ...]
    consumers_set_back: tuple[SetBack, ...]
    files_to_take_again: tuple[str, ...] = source("files")
    missing_tables: tuple[str, ...] = source("missing", _names)
    given_up_tables: tuple[str, ...] = source("given_up", _names)

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(str(self.topic), style="bold")
        if not self.tables:
            yield Line("No other engine can change the log of this topic: there is nothing to repair.", wraps=True)
        for table in self.tables:
            yield from table.screen_blocks()
        yield SetBack.table.of(self.consumers_set_back)
        if self.files_to_take_again:
            yield Heading("Files whose messages the rollback took away: `lifecycle ingest` takes them again")
            yield from self.files_to_take_again
        if self.given_up_tables:
            yield Line(f"Given up: {', '.join(self.given_up_tables)}. Erasures no longer wait.", wraps=True)
        elif self.missing_tables:
            yield Notes(
                [
                    f"The {table} is not in the catalog under its name. Someone has renamed or dropped it, and its files may hold messages, "
                    "also of an erased key. Bring the table back under its name. If you dropped it together with its files, "
                    "--give-up-tables --by NAME --why WHY gives it up."
                    for table in self.missing_tables
                ],
                style="red",
            )


def repair_view(done: Repair) -> RepairView:
    tables = tuple(
        TableState.of(one, offsets="horizons" if one.kind else "end offsets", repaired=one.table in done.repaired) for one in done.found
    )
    set_back = tuple(SetBack(consumer=consumer, partition=partition, from_=was) for consumer, partition, was in done.set_back)
    return RepairView.of(
        done,
        ok=all(one.repaired or not one.problem for one in tables) and done.missing == done.given_up,
        tables=tables,
        consumers_set_back=set_back,
    )
