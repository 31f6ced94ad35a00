"""The pages: whole documents, everything escaped, nothing from elsewhere, nobody let in unasked."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest

from message_lifecycle.app import pages
from tests.dags import samples
from tests.dags.samples import EVIL

BASE = "/lifecycle"
DOCUMENTS = {
    "overview": lambda: pages.overview(
        base=BASE,
        status=[samples.status(), samples.unreadable(), samples.status(topic="demo/mein topic", held=[], last_removal=None, next_due_at=None)],
        runs=[samples.outcome(detail=EVIL)],
        erasures=[samples.erasure(), samples.erasure(state="erased", detail="", topics=["demo/flights"], of_topics=None, done=None, waiting=[])],
    ),
    "overview that is searched": lambda: pages.overview(base=BASE, status=[samples.status()], runs=[], search=EVIL, trouble="held"),
    "empty overview": lambda: pages.overview(base=BASE, status=[], runs=[]),
    "topic": lambda: pages.topic(base=BASE, page=samples.topic()),
    "topic that waits": lambda: pages.topic(
        base=BASE,
        page=samples.topic(
            status=samples.status(waiting={"plan_id": "0" * 32, "messages": 9, "since": None, "lapses_at": None, "asked_in_airflow": True}, problems=[EVIL], warnings=[EVIL])
        ),
    ),
    "empty topic": lambda: pages.topic(
        base=BASE,
        page=samples.topic(partitions=[], consumers=[], runs=[], bounds=[], snapshot_id=None, expiries=None, growth=None, status=samples.status(held=[], next_due_at=None)),
    ),
    "plan": lambda: pages.plan(base=BASE, page=samples.plan()),
    "new plan": lambda: pages.plan(
        base=BASE, page=samples.plan(state="planned", staged=None, gate=None, approval=None, outcome=None, bounds=[], actions=[], held=[])
    ),
    "plan that waits": lambda: pages.plan(
        base=BASE, page=samples.plan(state="gated", approval=None, outcome=None, waits_until="2026-11-22T15:00:00Z", asks=[EVIL], ages=samples.ages())
    ),
    "documents": lambda: pages.topic(base=BASE, page=samples.documents()),
    "no documents": lambda: pages.topic(base=BASE, page=samples.documents(documents=[], own_settings=[])),
    "very many documents": lambda: pages.topic(base=BASE, page=samples.documents(documents=[samples.document()] * 1_000)),
    "plan of documents": lambda: pages.plan(base=BASE, page=samples.document_plan()),
    "new plan of documents": lambda: pages.plan(base=BASE, page=samples.document_plan(blocked=None)),
    "run": lambda: pages.run(
        base=BASE,
        run_id=f"message_cleaner/{EVIL}",
        outcomes=[samples.outcome(operation="reclaim", outcome="blocked", as_of=None, removed={}, messages_kept=None, plan_id=None, detail=EVIL)],
        questions=[{"plan_id": "0" * 32, "subject": EVIL}],
    ),
    "empty run": lambda: pages.run(base=BASE, run_id="message_cleaner/x", outcomes=[], questions=[]),
    "preview": lambda: pages.preview(base=BASE, run_id=f"preview/{EVIL}", as_of="2026-11-21T15:00:00Z", printed=f"Plan 0123\n{EVIL}"),
    "empty preview": lambda: pages.preview(base=BASE, run_id="preview/x", as_of=None, printed=None),
    "error": lambda: pages.error(base=BASE, kind="UnknownPlan", message=EVIL),
}  # fmt: skip


def cells(html: str) -> str:
    """The page without the labels of its cells."""
    return re.sub(r'(?<=<td) data-label="[^"]*"', "", html)


VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and keeps what refers to somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_whole_and_asks_nothing_of_anybody(name: str) -> None:
    html = DOCUMENTS[name]()
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert reader.seen.isdisjoint({"script", "link", "img", "iframe"})
    assert ("form" in reader.seen) is (name in ("overview", "overview that is searched")), "the search is the only form"
    assert set(re.findall(r"<form [^>]*method=\"(\w+)\"", html)) <= {"get"}
    # Of Airflow's own pages a run's alone is named.
    assert all(address.startswith((f"{BASE}/", "/dags/")) for address in reader.addresses)
    assert not re.search(r"https?://|@import|url\(", html)


@pytest.mark.parametrize("name", [name for name, make in DOCUMENTS.items() if "alert(" in make()])
def test_what_others_wrote_stays_text(name: str) -> None:
    html = DOCUMENTS[name]()
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&#34;&#39;" in html


@pytest.mark.parametrize("name", [name for name, make in DOCUMENTS.items() if "alert(" in make()])
def test_what_steers_a_reader_is_written_out_as_on_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right-to-left override shows `gpj.exe` as `exe.jpg`; an escape may have come from a file that was read."""
    real = pages._render

    def turned(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(EVIL, "a\u202egpj.exe\x1b[2K\u2066b")
        if isinstance(value, dict):
            return type(value)({turned(key): turned(one) for key, one in value.items()})
        return [turned(one) for one in value] if isinstance(value, list) else value

    monkeypatch.setattr(pages, "_render", lambda name, **values: real(name, **turned(values)))
    html = DOCUMENTS[name]()
    assert r"a\u202egpj.exe\x1b[2K\u2066b" in html
    assert not set(html) & {"\u202e", "\u2066", "\x1b"}


def test_unknown_is_said_and_never_zero() -> None:
    html = DOCUMENTS["plan"]()
    assert "of unknown (unknown)" in html


def test_how_far_a_view_reaches_is_shown_where_there_is_one() -> None:
    with_view = pages.topic(base="/lifecycle", page=samples.topic())
    assert "Compacted up to" in with_view
    assert "168,387" in with_view
    assert "Compacted up to" not in pages.topic(base="/lifecycle", page=samples.topic(compacted=None))


def test_of_very_many_documents_some_are_shown_and_the_others_counted() -> None:
    html = cells(DOCUMENTS["very many documents"]())
    assert html.count("<td>letter</td><td>ada</td>") == 200
    assert "800 more" in html


def test_a_plan_of_documents_shows_what_goes_why_and_who_is_left_out() -> None:
    html = cells(DOCUMENTS["plan of documents"]())
    for said in ("900 – 1,899", "purged_synced", "synced 1,900", "the first change", "<td>poem</td>", "changes removed"):
        assert said in html
    assert "blocked" not in DOCUMENTS["new plan of documents"]().partition("<h2>Actions")[0].partition("</style>")[2]


def test_a_page_adapts_to_width_and_to_the_dark() -> None:
    html = DOCUMENTS["topic"]()
    assert "color-scheme: light dark" in html
    assert '<meta name="color-scheme" content="light dark">' in html
    assert 'name="viewport"' in html


def test_pictures_are_on_their_pages_with_the_figures_as_a_table() -> None:
    topic, plan = DOCUMENTS["topic"](), DOCUMENTS["plan that waits"]()
    assert [html.count("<svg ") for html in (topic, plan, DOCUMENTS["empty topic"](), DOCUMENTS["plan"]())] == [2, 1, 0, 0]
    assert topic.count("<summary>As a table</summary>") == 2
    assert '<td data-label="Messages" class="n">9</td><td data-label="Bytes of their segments" class="n">90 bytes</td>' in topic
    assert "of unknown age: 2 leave, 3 stay" in plan.lower()


def test_each_cell_names_its_column_for_a_narrow_window() -> None:
    table = "<table>\n<tr><th>Plan</th><th></th></tr>\n<tr><td><b>1</b></td><td>x</td></tr><tr><td>2</td><td>y</td><td>z</td></tr></table>"
    once = '<tr><td data-label="Plan"><b>1</b></td><td>x</td></tr><tr><td data-label="Plan">2</td><td>y</td><td>z</td></tr></table>'
    found = pages.label_cells(table + table.replace("Plan", "Topic"))
    assert found.count(once) == found.count(once.replace("Plan", "Topic")) == 1
    page = DOCUMENTS["plan"]()
    assert '<td data-label="Check"><code>share</code></td>' in page
    assert "@media (max-width: 40rem)" in page


def test_names_of_any_script_are_paths() -> None:
    assert pages.topic_path("demo/größe.ü") == "topics/demo/gr%C3%B6%C3%9Fe.%C3%BC"


@pytest.mark.parametrize(("seconds", "words"), [(0, "0s"), (59, "59s"), (3_660, "1h1m"), (90_061, "1d1h"), (None, "unknown")])
def test_spans(seconds: int | None, words: str) -> None:
    assert pages.format_span(seconds) == words


@pytest.mark.airflow
def test_every_route_asks_who_is_there_and_none_writes(plugins: None) -> None:
    import lifecycle_pages

    app = lifecycle_pages.application()
    asked = {dependency.dependency.__name__ for dependency in app.router.dependencies if dependency.dependency}
    assert "may_read" in asked
    assert len(app.router.dependencies) == 2
    routes: list[Any] = app.routes
    assert {method for route in routes for method in route.methods} <= {"GET", "HEAD"}
    assert {route.path for route in routes} == {"/", "/topics/{stream}/{topic}", "/plans/{plan_id}", "/runs", "/{path:path}"}


@pytest.mark.airflow
def test_nobody_is_let_in_unasked(plugins: None) -> None:
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    import lifecycle_pages

    assert lifecycle_pages.LifecyclePages.fastapi_apps[0]["url_prefix"] == BASE
    client = TestClient(create_app(), raise_server_exceptions=False)
    for path in ("/", "/topics/a/b", "/plans/x", "/runs?dag_id=message_cleaner&run_id=x", "/nowhere", "/docs", "/openapi.json"):
        refused = client.get(f"{BASE}{path}")
        assert refused.status_code == 401, path
        assert "Unauthorized" in refused.text
        assert refused.headers["content-security-policy"] == pages.HEADERS["Content-Security-Policy"]
        browser = client.get(f"{BASE}{path}", headers={"Accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
        asked = quote(f"{BASE}{path}", safe="")
        assert (browser.status_code, browser.headers["location"]) == (303, f"/api/v2/auth/login?next={asked}")
        went_on = client.get(browser.headers["location"], follow_redirects=False)
        assert (went_on.status_code, went_on.headers["location"].partition("?next=")[2]) == (307, asked), (
            "Airflow takes it for a page of its own"
        )


@pytest.mark.airflow
def test_a_page_that_is_not_there_is_told_on_a_page(plugins: None) -> None:
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    import lifecycle_pages

    app = lifecycle_pages.application()
    for dependency in app.router.dependencies:
        app.dependency_overrides[dependency.dependency] = lambda: None
    app.dependency_overrides[get_user] = lambda: None
    client = TestClient(app, raise_server_exceptions=False)
    for path, status, told in (
        ("/nowhere<b>", 404, "There is no page &#39;nowhere&lt;b&gt;&#39; here."),
        ("/runs?dag_id=x", 400, "lacks, or has wrong: run_id"),
    ):
        found = client.get(path)
        assert (found.status_code, found.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert told in found.text
        assert all(found.headers[name] == value for name, value in pages.HEADERS.items())


def test_checks_that_hold_are_folded_and_the_others_shown() -> None:
    html = DOCUMENTS["plan"]()
    folded = html.partition("<details")[2].partition("</details>")[0]
    assert "1 of 3 checks hold" in folded
    assert "rows_exact" in folded
    assert "share" not in folded
    assert "never" in html.partition("Findings of the gate")[2].partition("<details")[0]


def test_a_plan_says_in_which_state_it_is() -> None:
    told = {
        "is asked": samples.plan(state="gated", approval=None, outcome=None, waits_until="2026-11-22T15:00:00Z", asks=["whether"]),
        "was asked": samples.plan(asks=["whether"]),
        "will be asked": samples.plan(state="staged", gate=None, approval=None, outcome=None, asks=["whether"]),
    }
    for words, page in told.items():
        assert re.findall(r"A person (\w+ \w+(?: \w+)?): whether", pages.plan(base=BASE, page=page)) == [words]
    assert "admin has approved it, 2026-11-21 15:01:00; it is not published yet." in pages.plan(
        base=BASE, page=samples.plan(state="gated", outcome=None)
    )


def test_a_plan_links_to_its_run_and_to_what_came_of_it() -> None:
    html = pages.plan(base=f"/air{BASE}", page=samples.plan(successor="5" * 32, undone_by="6" * 32))
    run = "scheduled__2026-11-21T15%3A00%3A00Z"
    assert f'href="/air/lifecycle/runs?dag_id=message_cleaner&amp;run_id={run}' in html
    assert f'href="/air/dags/message_cleaner/runs/{run}' in html
    for other in ("5" * 32, "6" * 32):
        assert f'href="/air/lifecycle/plans/{other}"' in html


def test_a_time_within_a_sentence_is_shown_as_those_that_stand_alone() -> None:
    html = pages.overview(
        base=BASE, status=[samples.status(ok=False, problems=["9 messages are overdue since 2026-11-20T12:00:00.5Z, and nothing"])], runs=[]
    )
    assert "overdue since 2026-11-20 12:00:00.5, and nothing" in html
    assert "T12:00:00" not in html
    assert "scheduled__2026-11-21T15:00:00Z" in DOCUMENTS["plan"](), "a name stays as it is"


def test_a_partition_that_never_had_a_message_has_no_full_bar() -> None:
    empty = {**samples.topic()["partitions"][0], "start_offset": 0, "end_offset": 0, "messages": 0, "segments": 0}
    html = pages.topic(base=BASE, page=samples.topic(partitions=[empty]))
    assert html.count('class="bar none"') == 1
    assert 'aria-label="no message was ever there"' in html
    assert "bar none" not in DOCUMENTS["topic"]()


def test_a_preview_shows_the_lines_that_the_command_prints() -> None:
    html = pages.preview(base=BASE, run_id="preview/x", as_of=None, printed="Plan 0123\n  goes at 2026-11-21T15:00:00Z\n\u202e<b>")
    assert "white-space: pre-wrap" in html, "a long reason is read without a bar to move"
    assert "<pre>Plan 0123\n  goes at 2026-11-21T15:00:00Z\n\\u202e&lt;b&gt;</pre>" in html


def test_what_a_view_leaves_out_is_not_told_as_removed() -> None:
    compacted = samples.outcome(operation="compaction", removed={"superseded": 330_221}, messages_kept=4_954)
    html = cells(pages.overview(base=BASE, status=[], runs=[compacted, samples.outcome()]))
    assert '<td class="deed">nothing; not in the view: 330,221 by superseded</td><td class="n">4,954 in the view</td>' in html
    assert '<td class="deed">160,754 by expiry</td>' in html
    assert ".detail { overflow-wrap: anywhere; }" in html and ".says { overflow-wrap: anywhere;" in html
    assert html.count('<td class="detail">') == 2, "an id of 32 letters would push it out of the page"


def test_settings_that_nobody_has_given_are_folded() -> None:
    for name in ("topic", "documents"):
        settings = cells(DOCUMENTS[name]()).partition("<h2>Settings</h2>")[2]
        shown, _, folded = settings.partition("<details")
        assert "<td>topic</td>" in shown
        assert "<td>built in</td>" not in shown
        assert "more, as they are built in" in folded
        assert "<td>built in</td>" in folded.partition("</details>")[0]


def test_single_messages_are_not_told_as_segments_of_no_bytes() -> None:
    rows = {"action": "remove_rows", "partition": 0, "from_": 0, "to": 9, "segments": 0, "messages": 5, "bytes": None, "newest_at": None}
    removes = {**samples.plan()["removes"], "messages": 5, "bytes": 0, "byte_share": 0.0, "segments": 0, "by_reason": {"ttl": 5}}
    plan = samples.plan(removes=removes | {"files": {"count": 0, "digest": "e" * 64}}, actions=[samples.Sample(**rows, reason="ttl")])
    html = cells(pages.plan(base=BASE, page=plan))
    assert "<b>0 bytes</b><span>at once: the files of single messages stay" in html
    assert "whole segments" not in html
    assert "e" * 64 not in html, "the digest of no files"
    row = re.search(r"<tr><td>remove rows</td>.*?</tr>", html)
    assert row is not None and "unknown" not in row[0], "nobody looks how old each of them is"
    back = pages.plan(base=BASE, page={**plan, "takes_back": "9" * 32, "restores": 5})
    assert "0 bytes" not in back
    assert "whole segments" not in back


def test_offsets_of_single_rows_are_told_apart() -> None:
    erased = {"action": "erase_rows", "table_": "log", "partition": 0, "offsets": "0,39,217,552-560", "messages": 12, "rows": 12}
    html = pages.plan(base=BASE, page=samples.plan(operation="erasure", actions=[samples.Sample(**erased, reason="erased")]))
    assert "0, 39, 217, 552-560" in html


def test_what_stands_between_backticks_is_a_command_and_stays_text() -> None:
    html = pages.error(base=BASE, kind="UnknownPlan", message="`lifecycle ledger list` shows <b>`<i>`")
    assert "<code>lifecycle ledger list</code> shows &lt;b&gt;`&lt;i&gt;`" in html, "what is no command of ours may be somebody's data"


def test_who_waits_without_airflow_is_told_the_command_alone() -> None:
    told = {"state": "gated", "approval": None, "outcome": None, "waits_until": "2026-11-22T15:00:00Z"}
    asked = pages.plan(base=BASE, page=samples.plan(**told))
    by_command = pages.plan(base=BASE, page=samples.plan(**told, runs=[]))
    answer = f"<code>lifecycle approve {samples.plan()['plan_id'][:12]} --by NAME --why WHY</code>, or <code>refuse</code>."
    assert f"It is answered under Airflow's <em>Required Actions</em>, or by {answer}" in asked
    assert f"It is answered by {answer}" in by_command
