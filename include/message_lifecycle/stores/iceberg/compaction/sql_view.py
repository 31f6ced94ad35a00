"""The SQL view of a compacted topic: the compacted table up to its horizons, then the log, as one relation (CMP-6).

It names a snapshot of the compacted table, so that the two halves always fit: whoever compacts or purges writes it anew.
"""

from __future__ import annotations

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rules import Either
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import ViewState
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.iceberg import rule_sql, view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import state_of
from message_lifecycle.stores.iceberg.layout import CATALOG, COMPACTED, LATEST
from message_lifecycle.stores.iceberg.session import sql_table


def keep_sql_view(tables: Tables, name: TopicName, policy: Policy) -> str | None:
    """Make the view say what the topic's newest compaction and its settings say; its name. None: nothing was compacted.

    Raises CompactedTableMissing, ForeignTable, TableBusy, CatalogUnavailable."""
    state = state_of(tables, name)
    if state is None:
        return None
    text, place = _text(name, state, policy), (name.namespace, name.table(LATEST))
    location = tables.pointers.one(place)
    if location is None or view_file.text_of(tables.at(place, location).content, place=place) != text:
        view_file.put(place, text, new=location is None)
    return ".".join((CATALOG, *place))


def _text(name: TopicName, state: ViewState, policy: Policy) -> str:
    columns = ", ".join(field.name for field in SCHEMA.fields)
    past = _past(state)
    both = (
        f"SELECT {columns} FROM {sql_table(name, kind=COMPACTED)} VERSION AS OF {state.snapshot_id} WHERE NOT coalesce(remembered, false) "
        f"UNION ALL SELECT {columns} FROM {sql_table(name)} WHERE {past}"
    )
    rule = age_rules.hidden(policy)
    if rule == Either(()):
        return f"SELECT {columns} FROM ({both})"
    # What is dead hides every older message of its key (CMP-8); only past the horizon can it have one in the view. A join and no
    # subquery: of those Spark's optimizer fails on some.
    dead = f"SELECT partition, key, offset FROM {sql_table(name)} WHERE {past} AND {rule_sql.holds(rule)}"
    older = "d.partition = m.partition AND d.key = m.key AND d.offset > m.offset"
    return f"SELECT {columns} FROM ({both}) m LEFT ANTI JOIN ({dead}) d ON {older} WHERE {rule_sql.holds_not(rule)}"


def _past(state: ViewState) -> str:
    """Condition: the message lies past its partition's horizon."""
    each = [f"(partition = {partition} AND offset > {horizon})" for partition, horizon in sorted(state.horizons.items())]
    others = ", ".join(str(partition) for partition in sorted(state.horizons))
    return "(" + " OR ".join([*each, f"partition NOT IN ({others})" if others else "true"]) + ")"
