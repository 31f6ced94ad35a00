"""Fold a table of changes in the obvious way in Spark, in a plain application that does not store its result.

Run: `python -m bench.documents_peer TABLE`. TABLE is an identifier as Spark's SQL writes it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from message_lifecycle.folds import fold_of

if TYPE_CHECKING:
    import pandas as pd


def fold(session: SparkSession, table: str) -> None:
    merge = fold_of("json_merge_patch", yjs_roots={})

    def folded(group: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        ordered = group.sort_values("server_seq")
        folding = merge.start(None)
        for payload in ordered["payload"]:
            folding.apply(bytes(payload))
        return pd.DataFrame(
            {
                "document": ordered["document"].iloc[:1],
                "server_seq": ordered["server_seq"].iloc[-1:].to_numpy(),
                "state": [folding.stored()],
            }
        )

    rows = session.table(table).select("document", "server_seq", "payload")
    found = rows.groupBy("document").applyInPandas(folded, "document string, server_seq bigint, state binary")
    found.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    session = SparkSession.builder.appName("peer").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    fold(session, sys.argv[1])
    session.stop()
