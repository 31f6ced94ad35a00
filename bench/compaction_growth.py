"""Draw the cost of a compaction by the size of its tail and by the size of the view that takes the tail up.

The picture also shows the time that DuckDB takes to compact everything again. The views have unique keys, which is the worst case:
compaction inspects every key of the view. Run: `python -m bench compaction_growth [--view N] [--to FILE]`. The run takes a while, so
`make bench` leaves it out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.compaction import PARTITIONS, Set, measuring, runs
from bench.compaction_data import Log
from bench.whole_run import COMMAND, total
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout

VIEW = 4_000_000
TAILS, VIEWS = (0.005, 0.02, 0.05, 0.1, 0.2), (0.25, 0.5, 1.0, 2.0)
"""Shares of the view, and multiples of it; the tail is TAIL of it where the view varies."""
TAIL = 0.02
PICTURE = Path(__file__).parent / "compaction_growth.svg"
Point = tuple[float, float, float]
"""Messages, CPU seconds of ours, and of the peer's."""

WIDTH, HEIGHT, LEFT, TOP = 300, 200, 60, 40
COLOURS = ("#1a6faf", "#999999")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--view", type=int, default=VIEW, help="messages of the view")
    parser.add_argument("--to", type=Path, default=PICTURE)
    given = parser.parse_args()
    load_environment()
    by_tail = [(given.view, round(given.view * share), round(given.view * share)) for share in TAILS]
    by_view = [(round(given.view * times), round(given.view * TAIL), round(given.view * times)) for times in VIEWS]
    panels = {
        f"messages in the tail, of a view of {given.view:,}": measured(by_tail),
        f"messages in the view, with a tail of {round(given.view * TAIL):,}": measured(by_view),
    }
    given.to.write_text(picture(panels), encoding="utf-8")
    return 0


def measured(sizes: Sequence[tuple[int, int, int]]) -> list[Point]:
    """Measure the points of a panel. `sizes`: of view and tail, and the point's place on the axis."""
    scratch = find_layout().scratch / "bench-growth"
    scratch.mkdir(parents=True, exist_ok=True)
    found = []
    with measuring(scratch) as make:
        for view, tail, at in sizes:
            log = Log(messages=view, partitions=PARTITIONS, keys=None)
            one = Set(log=log, tail=replace(log, messages=tail, first=log.rows))
            costs = runs(make, one, scratch, 1, [COMMAND])
            mine, theirs = total(costs.ours[COMMAND][0]).cpu, costs.theirs[0].cpu
            found.append((float(at), mine, theirs))
            print(f"view {view:,}, tail {tail:,}: CPU {mine:.2f}, DuckDB all again {theirs:.2f}", flush=True)
    shutil.rmtree(scratch)
    return found


def picture(panels: dict[str, list[Point]]) -> str:
    """Return an SVG document with the panels next to each other, with axes from zero."""
    most = max(max(ours, theirs) for points in panels.values() for _, ours, theirs in points) * 1.1
    parts = [part for number, (title, points) in enumerate(panels.items()) for part in _panel(number, title, points, most)]
    legend = (
        f'<text x="{LEFT}" y="16" fill="{COLOURS[0]}">compaction with its gate, whole process, CPU seconds</text>'
        f'<text x="{LEFT + 260}" y="16" fill="{COLOURS[1]}">DuckDB compacting everything again</text>'
    )
    whole = (2 * (WIDTH + LEFT) + 30, HEIGHT + TOP + 50)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{legend}{"".join(parts)}</svg>\n'
    )


def _panel(number: int, title: str, points: list[Point], most: float) -> Iterator[str]:
    left, bottom, widest = LEFT + number * (WIDTH + LEFT), TOP + HEIGHT, max(point[0] for point in points)

    def place(across: float, up: float) -> str:
        return f"{left + WIDTH * across / widest:.1f},{bottom - HEIGHT * up / most:.1f}"

    yield f'<path d="M{left},{TOP}V{bottom}H{left + WIDTH}" fill="none" stroke="black"/>'
    for share in (0.5, 1.0):
        yield f'<text x="{left - 6}" y="{bottom - HEIGHT * share + 4:.0f}" text-anchor="end">{most * share:.0f} s</text>'
        yield f'<text x="{left + WIDTH * share:.0f}" y="{bottom + 16}" text-anchor="middle">{widest * share:,.0f}</text>'
    yield f'<text x="{left + WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">{title}</text>'
    for column, colour in enumerate(COLOURS, 1):
        line = " ".join(place(point[0], point[column]) for point in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for point in points:
            x, y = place(point[0], point[column]).split(",")
            yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


if __name__ == "__main__":
    sys.exit(main())
