"""The documentation as a site: `make docs`. A page with a `generated` comment gets its text from the code when the site is built."""

from __future__ import annotations

import ast
import re
from base64 import b64encode
from html import escape
from inspect import cleandoc, getmembers, isclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mermaidx
import typer
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import Config, GoogleDocstring
from typer.cli import get_docs_for_click

import message_lifecycle
from message_lifecycle import __version__
from message_lifecycle.app.cli import tree
from message_lifecycle.app.views.metrics import METRICS
from message_lifecycle.model import errors

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
KINDS = {kind.__name__: kind.exit_code for kind in (errors.LifecycleError, errors.BadInput, errors.Refused, errors.Unavailable)}
BASES = {name: kind.exit_code for name, kind in getmembers(errors, isclass) if issubclass(kind, errors.LifecycleError)}
RULE = re.compile(r"^### ([A-Z]+-\d+) · (.*)$", re.MULTILINE)


def commands() -> str:
    """Return a section for each command of `lifecycle`, with its arguments and options."""
    group = tree()
    return link_rules(get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="lifecycle"), name="lifecycle", indent=1))


def error_codes() -> str:
    """Return a table of all error codes: the exit status, and the docstring of the class or the function that makes the error."""
    rows = [f"| `{code}` | {status} | {text} |\n" for code, (status, text) in sorted(find_errors().items())]
    return link_rules("| code | exit status | when |\n|---|---|---|\n" + "".join(rows))


def link_rules(text: str) -> str:
    """Return the text with a link at each id of a rule, for example DEL-1."""
    found = RULE.findall((ROOT / "docs" / "rules.md").read_text(encoding="utf-8"))
    anchors = {rule: re.sub(r"[^\w -]", "", f"{rule} · {title}".lower()).replace(" ", "-") for rule, title in found}
    return re.sub(r"\b[A-Z]+-\d+\b", lambda rule: f"[{rule[0]}](rules.md#{anchors[rule[0]]})" if rule[0] in anchors else rule[0], text)


def find_errors() -> dict[str, tuple[int, str]]:
    """Return the exit status and the docstring of every error, by code. A class's code is its name; a function names the code."""
    found = {
        name: (kind.exit_code, one_line(kind.__doc__))
        for name, kind in getmembers(errors, isclass)
        if issubclass(kind, errors.LifecycleError) and name not in KINDS
    }
    for path in Path(message_lifecycle.__path__[0]).rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for call in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                    kind = call.func.id if call.func.id in BASES else getattr(function.returns, "id", "")
                    codes = [word.value.value for word in call.keywords if word.arg == "code" and isinstance(word.value, ast.Constant)]
                    found |= {code: (BASES[kind], one_line(ast.get_docstring(function))) for code in codes if kind in BASES}
    return found


def one_line(docstring: str | None) -> str:
    text = cleandoc(docstring or "").partition("\n\nArgs:")[0]
    return " ".join(text.split()).replace("|", "\\|")


def metric_list() -> str:
    """Return a table of all metrics with their labels."""
    rows = [f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {text} |\n" for name, text, labels in METRICS]
    return "| metric | labels | value |\n|---|---|---|\n" + "".join(rows)


def readme() -> str:
    """Return README.md as a page of the site."""
    return as_page("README.md")


def contributing() -> str:
    """Return CONTRIBUTING.md as a page of the site."""
    return as_page("CONTRIBUTING.md")


def as_page(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    return text.replace("](CONTRIBUTING.md", "](contributing.md").replace("](README.md", "](start.md")


def as_picture(diagram: re.Match[str]) -> str:
    """Return a Mermaid diagram as a picture within the page, because the site loads no script. Its title is `accTitle` of the diagram."""
    svg = mermaidx.render(diagram[1]).svg()
    title, width = re.search("accTitle: (.*)", diagram[1]), re.search('viewBox="[^ ]+ [^ ]+ ([0-9]+)', svg)
    if not title or not width:
        raise ExtensionError(f"A diagram needs a title (accTitle) and a width:\n{diagram[1]}")
    data = b64encode(svg.encode()).decode()
    return f'<img class="diagram" alt="{escape(title[1])}" width="{width[1]}" src="data:image/svg+xml;base64,{data}">\n'


def fill(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Write the generated parts into a page before Sphinx parses the page."""
    for write in (commands, error_codes, metric_list, readme, contributing):
        mark = f"<!-- generated: {write.__name__} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, write())
    source[0] = re.sub(r"^```mermaid\n(.*?)^```$", as_picture, source[0], flags=re.MULTILINE | re.DOTALL)


def read_docstring(app: Sphinx, what: str, name: str, documented: object, options: Any, lines: list[str]) -> None:
    """Read Google's sections. Napoleon's own hook takes the text before a colon in an attribute's docstring for a type."""
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, documented, options).lines()


def setup(app: Sphinx) -> None:
    """Connect the two hooks. Sphinx calls this."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", read_docstring)


project = "Message lifecycle"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "pydata_sphinx_theme"
# The sidebar shows every page under its kind, so the header needs no list of pages.
html_theme_options = {"navbar_center": [], "navigation_with_keys": False, "show_toc_level": 2, "secondary_sidebar_items": ["page-toc"]}
html_sidebars = {"**": ["globaltoc.html"]}
html_title = project
html_static_path = html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
# Quotes and dots are set well; two hyphens stay, because they begin an option.
smartquotes_action = "qe"
myst_heading_anchors = 4
# Docstrings write code in single backticks, as Markdown does.
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
# Types that have no page here. `Raises:` names errors by their codes; an unknown code is an error of the build.
nitpick_ignore_regex = [("py:class", r"(message_lifecycle|collections\.abc)\..*")]
nitpick_ignore = [("py:exc", code) for code in find_errors()]
