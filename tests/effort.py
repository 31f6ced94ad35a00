"""How many logs a property is held to: many in memory, few where each costs seconds, and many there too when somebody hunts for failures."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

HUNT = "hunt"
_HUNTED = 20

generated = pytest.mark.generated


def effort(store_kind: str, logs: int, *, on_tables: int = 0) -> settings:
    """Shrinking would run a failing log hundreds of times: elsewhere that is quick, on tables it is an hour."""
    tables = store_kind == "iceberg"
    examples = on_tables if tables else logs
    return settings(
        max_examples=examples * _HUNTED if settings.get_current_profile_name() == HUNT else examples,
        phases=[Phase.generate] if tables else list(Phase),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
