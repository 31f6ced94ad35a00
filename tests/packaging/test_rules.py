"""Every rule that any file cites by its id is defined in docs/rules.md, once, and in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.packaging.files import ROOT, project_texts

RULES = Path("docs", "rules.md")
DEFINITION = re.compile(r"^### (?P<id>[A-Z]+-?\d+) · (?P<title>.+)\n(?P<text>(?:(?!#).*\n)*)", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Prefixes are not listed, so that one which nobody knows is found as well. The properties have a letter and no dash.
ID = re.compile(r"(?<![\w-])(?:(?P<prefix>[A-Z]{3,4})-\d+|P[1-9]\d?)(?![\w-])")
SPAN = re.compile(r"(?<![\w-])(?P<prefix>[A-Z]{3,4})-(?P<first>\d+) to (?P=prefix)-(?P<last>\d+)(?!\w)")
NO_RULES = {
    "ADR-43": "NATS' own document on per-message TTL",
    "CRC-32": "a checksum",
    "PIP-14": "Pulsar's own document on compaction",
    "SHA-256": "a hash",
    "UTF-16": "an encoding",
    "UTF-32": "an encoding",
    "UTF-8": "an encoding",
}
SOME = 50
"""Rules that are cited at the least: a pattern that finds nothing proves nothing."""

Texts = Iterable[tuple[Path, str]]


def definitions(rules: str) -> list[tuple[str, str]]:
    """(id, text) of each, in order."""
    return [(found["id"], found["text"].strip()) for found in DEFINITION.finditer(rules)]


def citations(text: str) -> Iterator[str]:
    """Ids that a text names, those between the ends of `A-1 to A-4` included."""
    yield from (found[0] for found in ID.finditer(text) if found[0] not in NO_RULES)
    for found in SPAN.finditer(text):
        yield from (f"{found['prefix']}-{number}" for number in range(int(found["first"]), int(found["last"]) + 1))


def problems(rules: str, texts: Texts) -> list[str]:
    """What is wrong with the definitions in `rules`, given what `texts` and the rules themselves cite."""
    defined = definitions(rules)
    known = Counter(name for name, _ in defined)
    found = [f"{name} is defined {times} times" for name, times in known.items() if times > 1]
    found += [f"{name} says nothing" for name, text in defined if not re.search(r"\w", text)]
    cited = {(name, str(path)) for path, text in (*texts, (RULES, rules)) for name in citations(text)}
    return found + [f"{name} is cited in {path} and defined nowhere" for name, path in sorted(cited) if name not in known]


@pytest.fixture(scope="module")
def rules() -> str:
    return (ROOT / RULES).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def others() -> list[tuple[Path, str]]:
    return [(path, text) for path, text in project_texts() if path != RULES]


def test_every_rule_that_is_cited_is_defined_once_and_in_words(rules: str, others: Texts) -> None:
    assert problems(rules, others) == []


def anchors(page: str) -> list[str]:
    """Return the anchor of each heading, as GitHub and Markdown viewers build it."""
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page)]


def test_every_link_into_the_page_finds_its_heading(rules: str, others: Texts) -> None:
    own = set(re.findall(r"\]\(#([^)]+)\)", rules))
    from_others = {anchor for path, text in others if path.suffix == ".md" for anchor in re.findall(r"rules\.md#([\w-]+)", text)}
    assert len(own) > SOME
    assert sorted((own | from_others) - set(anchors(rules))) == []


def test_the_index_names_the_rule_that_each_link_opens(rules: str) -> None:
    links = re.findall(r"\[([A-Z]+-?\d+)\]\(#([^)]+)\)", rules)
    assert len(links) > SOME
    assert [link for link in links if not link[1].startswith(f"{link[0].lower()}--")] == []


def test_rules_are_cited(others: Texts) -> None:
    assert len({name for _, text in others for name in citations(text)}) > SOME


# Ids that are none are put together here, so that this file does not cite them.
def _id(prefix: str, number: int) -> str:
    return f"{prefix}-{number}"


def _without_one(rules: str) -> str:
    return DEFINITION.sub("", rules, count=1)


def _twice(rules: str) -> str:
    first = DEFINITION.search(rules)
    assert first is not None
    return f"{rules}\n{first[0]}\n"


def _emptied(rules: str) -> str:
    return DEFINITION.sub(lambda found: f"### {found['id']} · {found['title']}\n\n", rules, count=1)


@pytest.mark.parametrize(
    ("change", "found"),
    [(_without_one, "defined nowhere"), (_twice, "is defined 2 times"), (_emptied, "says nothing")],
    ids=["removed", "doubled", "emptied"],
)
def test_a_definition_that_is_damaged_is_found(rules: str, others: Texts, change: Callable[[str], str], found: str) -> None:
    name = definitions(rules)[0][0]
    wrong = problems(change(rules), others)
    assert wrong
    assert all(name in problem and found in problem for problem in wrong)


@pytest.mark.parametrize(
    "cited",
    [_id("EXP", 99), _id("XYZ", 1), _id("WXYZ", 12), "P" + "99", f"{_id('EXP', 8)} to {_id('EXP', 10)}"],
    ids=["unknown number", "unknown prefix", "long prefix", "property", "end of a span"],
)
def test_an_id_that_no_rule_has_is_found(rules: str, cited: str) -> None:
    wrong = problems(rules, [(Path("some.py"), f'"""What it does ({cited}, CLK-1)."""')])
    assert wrong
    assert all("some.py" in problem and "defined nowhere" in problem for problem in wrong)


@pytest.mark.parametrize("text", ["in UTF-8", "a-EXP-99-b", "SHA-256 of it", "XEXP-99x", "P1M", "HTTP2"])
def test_what_is_no_id_is_none(text: str) -> None:
    assert list(citations(text)) == []
