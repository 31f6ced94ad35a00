"""The count of hard sentences: each pattern is found in docstrings and comments, a plain sentence is not."""

from __future__ import annotations

import pytest
from bench.plain import CONSTRUCTIONS, PATTERNS, PRONOUN, Sentence, excess, find_hard, find_sentences

HARD = {
    "what": "What a crash has left.",
    "of": "Of the files the newest.",
    "relative": "The plan by which files leave.",
    "empty-head": "Drop those that expired.",
    "tell": "The gate tells the reason.",
    "old-turn": "The file stays, for it is young.",
    PRONOUN: "They leave with the segment.",
}
PLAIN = (
    "Return the files that lose every message.",
    "Whatever the catalog offers, a file stays.",
    "Remove it, and keep this.",
    "Call the format again for a new table.",
)


def names_of(source: str) -> list[str]:
    return [name for name, _ in find_hard(find_sentences("a.py", source))]


@pytest.mark.parametrize("source", ['"""{}"""', "# {}", 'def f():\n    """Return one. {}"""', 'LIMIT = 1\n"""{}"""', "x = 1  # {}"])
@pytest.mark.parametrize(("name", "sentence"), HARD.items())
def test_each_pattern_is_found(name: str, sentence: str, source: str) -> None:
    assert names_of(source.format(sentence)) == [name]


def test_each_pattern_has_its_sentence() -> None:
    assert HARD.keys() == PATTERNS.keys()


@pytest.mark.parametrize("sentence", PLAIN)
def test_a_plain_sentence_is_not_found(sentence: str) -> None:
    assert names_of(f'"""{sentence}"""') == []


def test_a_text_of_the_program_is_no_sentence() -> None:
    assert names_of('say("What a crash has left.")\nx = "They leave."  # noqa: F841') == []


def test_a_sentence_may_run_over_lines() -> None:
    docstring = '"""Files: the newest of\nwhich stays.\n\nAnother\nparagraph"""\n'
    comments = "# One sentence\n# in two lines. Next.\nx = 1  # behind code\n# It is below."
    assert list(find_sentences("a.py", docstring + comments)) == [
        Sentence("a.py", 1, "Files: the newest of which stays."),
        Sentence("a.py", 1, "Another paragraph"),
        Sentence("a.py", 6, "One sentence in two lines."),
        Sentence("a.py", 6, "Next."),
        Sentence("a.py", 8, "behind code"),
        Sentence("a.py", 9, "It is below."),
    ]


def test_a_count_above_its_ceiling_is_reported_with_the_worst_file() -> None:
    once = [(name, Sentence("a.py", 1, HARD[name])) for name in CONSTRUCTIONS]
    found = [*once, ("what", Sentence("b.py", 1, HARD["what"])), (PRONOUN, Sentence("b.py", 1, HARD[PRONOUN]))]
    assert excess(found, constructions=7, pronouns=1) == []
    report = excess(found, constructions=6, pronouns=1)
    assert report[0].startswith("7 hard sentences")
    assert report[1:4] == ["   6  a.py", "   1  b.py", "   2  what: name the thing: rows, files, settings (--show what)"]
    assert excess(found, constructions=7, pronouns=0)[1] == "   1  b.py"
