"""Counts the sentences in docstrings and comments that are hard to read. A count may fall, never rise.

`python -m bench.plain` exits with 1 if a count is above its ceiling, and names the worst files. `--show PATTERN` prints every sentence of
one pattern. `make check` runs it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lifecycle_local.layout import project_root

FOLDERS = ("include", "plugins", "spark_apps", "dags")
CONSTRUCTION_CEILING = 72
"""The most sentences of the `CONSTRUCTIONS` together. Lower it when the count falls; never raise it."""
PRONOUN_CEILING = 29
"""The most sentences that begin with a pronoun. Lower it when the count falls; never raise it."""
WORST = 5
"""The files that a failure names."""
DIRECTIVES = ("#!", "# noqa", "# type:")
"""Beginnings of comments that the shell or a tool reads."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A construction to avoid, and the advice that a failure prints."""

    regex: re.Pattern[str]
    advice: str


CONSTRUCTIONS = {
    "what": Pattern(re.compile(r"^What "), "name the thing: rows, files, settings"),
    "of": Pattern(re.compile(r"^Of \w"), "begin with the subject"),
    "relative": Pattern(re.compile(r"\b(?:by|for|from|in|of|on|to|with) (?:which|whom)\b"), "write two sentences"),
    "empty-head": Pattern(re.compile(r"\b(?:those (?:of|that|which|who)|(?:all|one) that|such as)\b"), "repeat the noun"),
    "tell": Pattern(re.compile(r"\b(?:tells?|told|telling|word of|the word)\b"), "write report, state, record or message"),
    "old-turn": Pattern(
        re.compile(r", for (?:it|no|the|they|what)\b|\banew\b|whoever|but for|comes? to\b|all the same"),
        "write because, again, anyone, except or still",
    ),
}
PRONOUN = "pronoun-first"
PATTERNS = {
    **CONSTRUCTIONS,
    PRONOUN: Pattern(re.compile(r"^(?:Again|All|Both|Each|It|Nobody|Nothing|These|They|This|Those)\b"), "begin with the noun"),
}


@dataclass(frozen=True, slots=True)
class Sentence:
    path: str
    line: int
    """The line where the docstring, or the block of comments, begins."""
    text: str


def find_sentences(path: str, source: str) -> Iterator[Sentence]:
    """Yield every sentence of the module's docstrings and comments. Strings under a constant or a field count as docstrings."""
    for line, text in chain(_docstrings(ast.parse(source)), _comments(source)):
        for paragraph in re.split(r"\n\s*\n", text):
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                if sentence:
                    yield Sentence(path, line, sentence)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case _:
                pass


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield blocks of comments. Comments of one column on neighbouring lines are one text."""
    first, place, lines = 0, (0, 0), list[str]()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type != tokenize.COMMENT or token.string.startswith(DIRECTIVES):
            continue
        line, column = token.start
        if lines and (line - 1, column) != place:
            yield first, "\n".join(lines)
            lines = []
        first, place = (first if lines else line), (line, column)
        lines.append(token.string.lstrip("# "))
    if lines:
        yield first, "\n".join(lines)


def find_hard(sentences: Iterable[Sentence]) -> Iterator[tuple[str, Sentence]]:
    """Yield the name of a pattern and a sentence that has it. A sentence with two patterns comes twice."""
    for sentence in sentences:
        for name, pattern in PATTERNS.items():
            if pattern.regex.search(sentence.text):
                yield name, sentence


def excess(found: Iterable[tuple[str, Sentence]], *, constructions: int, pronouns: int) -> list[str]:
    """Return the lines that report each count above its ceiling. No line means that all is well.

    Args:
        found: Names of patterns, each with a sentence that has it.
        constructions: The ceiling of the `CONSTRUCTIONS` together.
        pronouns: The ceiling of the sentences that begin with a pronoun.
    """
    hard, report = list(found), list[str]()
    for names, ceiling in ((CONSTRUCTIONS.keys(), constructions), ({PRONOUN}, pronouns)):
        ours = [(name, sentence) for name, sentence in hard if name in names]
        if len(ours) <= ceiling:
            continue
        report.append(f"{len(ours)} hard sentences ({', '.join(names)}), allowed are {ceiling}. Most are in:")
        files = Counter(sentence.path for _, sentence in ours)
        report += [f"{count:>4}  {path}" for path, count in files.most_common(WORST)]
        by_name = Counter(name for name, _ in ours)
        report += [f"{count:>4}  {name}: {PATTERNS[name].advice} (--show {name})" for name, count in by_name.most_common()]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", choices=PATTERNS, help="print each sentence of this pattern")
    show: str | None = parser.parse_args().show
    root = project_root()
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    sentences = [sentence for path in paths for sentence in _read(root, path)]
    hard = list(find_hard(sentences))
    if show:
        print("\n".join(f"{one.path}:{one.line}: {one.text}" for name, one in hard if name == show))
        return 0
    if report := excess(hard, constructions=CONSTRUCTION_CEILING, pronouns=PRONOUN_CEILING):
        print("\n".join(report), file=sys.stderr)
        return 1
    pronouns = sum(name == PRONOUN for name, _ in hard)
    print(
        f"{len(sentences):,} sentences; {len(hard) - pronouns} with a hard construction (at most {CONSTRUCTION_CEILING}), "
        f"{pronouns} begin with a pronoun (at most {PRONOUN_CEILING})"
    )
    return 0


def _read(root: Path, path: Path) -> Iterator[Sentence]:
    return find_sentences(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
