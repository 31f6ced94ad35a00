"""The official RFC 6902 suite (npm `json-patch-test-suite`, Apache-2.0) on the fold `json_patch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.folds import fold_of
from message_lifecycle.folds.json_text import canonical_json

SUITE = Path(__file__).parents[1] / "json_patch" / "node_modules" / "json-patch-test-suite"
FILES = ("tests.json", "spec_tests.json")


def cases() -> list[Any]:
    if not SUITE.is_dir():
        return []
    # A disabled case is disabled by the suite itself; one without a patch is a comment.
    found = [(name, at, case) for name in FILES for at, case in enumerate(json.loads((SUITE / name).read_text(encoding="utf-8")))]
    return [
        pytest.param(case, id=f"{name}-{at}") for name, at, case in found if "patch" in case and "doc" in case and not case.get("disabled")
    ]


CASES = cases()


@pytest.mark.skipif(not CASES, reason="the suite is not here: `make install` fetches it where npm is there")
def test_the_suite_is_whole() -> None:
    assert len(CASES) >= 90


@pytest.mark.parametrize("case", CASES)
def test_official_case(case: dict[str, Any]) -> None:
    folding = fold_of("json_patch", yjs_roots={}).start(json.dumps(case["doc"]).encode())
    payload = json.dumps(case["patch"]).encode()
    if "error" in case:
        with pytest.raises(ValueError, match=r"."):
            folding.apply(payload)
    else:
        folding.apply(payload)
        # A case without an expected document says that the patch applies.
        assert folding.stored() == canonical_json(case.get("expected", json.loads(folding.stored())))
