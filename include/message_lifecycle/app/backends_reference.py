"""The table of backends in docs/backends.md: `python -m message_lifecycle.app.backends_reference` prints it."""

from __future__ import annotations

from itertools import groupby

from message_lifecycle.model.topic import matrix

BEGIN, END = "<!-- the matrix: written by the program, a test holds it equal -->\n", "<!-- end of the matrix -->\n"


def reference() -> str:
    """Return the generated part of the page, with its begin and end marks. One line lists all refused limits of a backend."""
    lines = ["| backend | limit | logical read filter | physical removal |\n", "|---|---|---|---|\n"]
    for backend, group in groupby(matrix(), key=lambda support: support.backend):
        found = list(group)
        lines += [
            f"| `{backend}` | `{each.limit}` | {'yes' if each.logical else 'no'} | {each.physical or ''} |\n"
            for each in found
            if not each.refused
        ]
        refused = ", ".join(f"`{each.limit}`" for each in found if each.refused)
        if refused:
            lines.append(f"| `{backend}` | {refused} | refused when loaded | refused when loaded |\n")
    return BEGIN + "".join(lines) + END


if __name__ == "__main__":
    print(reference(), end="")
