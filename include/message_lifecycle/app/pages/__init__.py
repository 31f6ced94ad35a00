"""Pages next to Airflow's own: each function turns views into a whole HTML document. Read-only, no script, nothing from another host.

The template engine escapes every value, and unprintable characters are written out as on the terminal, because names of topics, reasons and
details of outcomes are text of other people. No page shows a key or the digest of a held key: a reader of the page who has a digest and its
hold's id could try keys against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined, Undefined, select_autoescape
from markupsafe import Markup, escape

from message_lifecycle.app.pages import pictures
from message_lifecycle.app.rendering import ABSENT
from message_lifecycle.app.views.actions import merge_neighbours
from message_lifecycle.app.views.overview import overview as view_overview
from message_lifecycle.app.views.state import merge_held
from message_lifecycle.app.wording import count, share
from message_lifecycle.model.instants import format_instant, format_span
from message_lifecycle.model.names import safe
from message_lifecycle.model.phrases import amount, noun, size
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME, value_text

if TYPE_CHECKING:
    from message_lifecycle.app.views.overview import ErasureLine
    from message_lifecycle.app.views.plans import PlanView
    from message_lifecycle.app.views.state import OutcomeView
    from message_lifecycle.app.views.status import Health, StatusView
    from message_lifecycle.app.views.topics import TopicPage

# Forbid scripts, and requests to another host. The overview's search is the only form.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEMPLATES = ("layout", "parts", "overview", "topic", "documents", "plan", "run", "preview", "error")
# Colours of states: bad needs a person's action, wait waits for something, good went well, calm needs no attention.
_TONES = {
    "published": "good", "passed": "good", "granted": "good", "erased": "good",
    "no_op": "calm", "superseded": "calm", "planned": "calm", "staged": "calm", "gated": "calm", "publishing": "calm", "closed": "calm",
    "needs_approval": "wait", "requested": "wait", "undone": "wait", "refused": "wait", "lapsed": "wait",
    "blocked": "bad", "starved": "bad", "failed": "bad",
}  # fmt: skip
# States of a topic, each with its colour and its words: on its card, and on the tile that counts such topics.
TROUBLES = {
    "failed": ("bad", "failed", "failed"),
    "asks": ("wait", "approval pending", "approvals pending"),
    "overdue": ("bad", "overdue", "overdue"),
    "held": ("wait", "on hold", "on hold"),
    "fine": ("good", "in order", "in order"),
}
# A topic may have 100,000 documents; the command line lists all.
_DOCUMENTS_SHOWN = 200


def overview(
    *,
    base: str,
    status: Sequence[StatusView],
    runs: Sequence[OutcomeView],
    erasures: Sequence[ErasureLine] = (),
    search: str = "",
    trouble: Health | None = None,
) -> str:
    """Every topic's state, the most urgent first, the erasures, and the newest outcomes. `search`: a part of a topic's name."""
    shown = view_overview(status, search=search, trouble=trouble)
    return _render("overview", base=base, page=vars(shown), erasures=erasures, runs=runs)


def topic(*, base: str, page: TopicPage) -> str:
    """One topic: its kept and removed messages with the reasons, its settings and readers; or its documents and their clients."""
    return _render("documents" if page.documents else "topic", base=base, page=page, status=page.status, shown=_DOCUMENTS_SHOWN)


def plan(*, base: str, page: PlanView) -> str:
    """One plan: its removals and their bounds, the gate's findings, the approval and the outcome."""
    return _render("plan", base=base, plan=page, shown=_DOCUMENTS_SHOWN)


def run(*, base: str, run_id: str, outcomes: Sequence[OutcomeView], questions: Sequence[Mapping[str, object]]) -> str:
    """The outcomes and questions of one Airflow run so far."""
    return _render("run", base=base, run_id=run_id, outcomes=outcomes, questions=questions)


def preview(*, base: str, run_id: str, as_of: str | None, printed: str | None) -> str:
    """The plans that a run of the DAG `preview` made, as the command prints them. `printed` None: the run has kept no text (yet)."""
    # Escape line by line, as the command prints. In one text, `safe` would also write out the line ends.
    lines = Markup("\n").join(map(safe, (printed or "").split("\n")))
    return _render("preview", base=base, run_id=run_id, as_of=as_of, printed=lines if printed else None)


def error(*, base: str, kind: str, message: str) -> str:
    return _render("error", base=base, kind=kind, message=message)


def topic_path(name: object) -> str:
    """A topic's page below `base`. Names are letters, digits, dots, dashes and one slash, but letters of any script."""
    return "topics/" + "/".join(quote(part, safe="") for part in str(name).split("/", 1))


def tone(word: str | None) -> str:
    return _TONES.get(word or "", "calm")


def moment(time: str | int | None) -> str:
    """`2026-11-21T15:00:00Z` -> `2026-11-21 15:00:00`; the pages say once that times are UTC."""
    text = format_instant(time) if isinstance(time, int) else time
    return "unknown" if text is None else text.removesuffix("Z").replace("T", " ").partition(".")[0]


def above(base: str) -> str:
    """Return the path below which Airflow's own pages are."""
    return base.rpartition("/")[0]


_ROW, _HEADER, _CELL = re.compile(r"<table>|<tr>.*?</tr>", re.DOTALL), re.compile(r"<th\b[^>]*>(.*?)</th>"), re.compile(r"<td\b")


def label_cells(html: str) -> str:
    """Return the page with the header of its column on each cell of a table. The style sheet shows it where a row is a card."""
    headers: list[str] = []

    def row(found: re.Match[str]) -> str:
        nonlocal headers
        if found[0] == "<table>":
            headers = []
            return found[0]
        headers = _HEADER.findall(found[0]) or headers
        labels = iter(headers)
        return _CELL.sub(lambda cell: f'{cell[0]} data-label="{label}"' if (label := next(labels, "")) else cell[0], found[0])

    return _ROW.sub(row, html)


_INSTANT = re.compile(r"(?<![\w:-])(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d+)?)Z(?!\w)")
_TICKED = re.compile(r"`(lifecycle [^`]+)`")


def own_value(value: Value | None, setting: str) -> str:
    """Return the value of a setting as text, with its unit."""
    return value_text(value, BY_NAME[setting].unit)


def is_defined(value: object) -> bool:
    """Jinja's test `defined`, which is false for an absent field of a view as well."""
    return value is not ABSENT and not isinstance(value, Undefined)


def _displayed_text(value: object) -> object:
    """Return a text for display: unprintable characters written out, times as `moment` shows them, commands in backticks as code.

    Ids that contain a time stay unchanged. Only `lifecycle` commands become code, because other text in backticks may be a person's data.
    Markup from a macro stays unchanged: its values have passed this function before.
    """
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = _INSTANT.sub(r"\1 \2", safe(value))
    return Markup(_TICKED.sub(r"<code>\1</code>", str(escape(text)))) if "`" in text else text


@cache
def _environment() -> Environment:
    folder = files(__package__)
    sources = {f"{name}.html": (folder / f"{name}.html").read_text(encoding="utf-8") for name in _TEMPLATES}
    sources["style.css"] = (folder / "style.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=DictLoader(sources),
        autoescape=select_autoescape(default=True, default_for_string=True, enabled_extensions=("html",), disabled_extensions=("css",)),
        undefined=StrictUndefined,
        finalize=_displayed_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for helper in (
        amount,
        noun,
        count,
        size,
        share,
        format_span,
        moment,
        tone,
        topic_path,
        above,
        value_text,
        own_value,
        merge_neighbours,
        merge_held,
    ):
        environment.filters[helper.__name__] = helper
    environment.globals |= {"troubles": TROUBLES, "pictures": pictures}
    environment.tests["defined"] = is_defined
    return environment


def _render(name: str, **values: object) -> str:
    return label_cells(_environment().get_template(f"{name}.html").render(**values))
