"""Commands that make all steps at once: `lifecycle run`, `compact` and `reclaim`.

`compact` keeps each key's latest message in a view next to the log (CMP-10). `reclaim` frees the space of messages that were removed before
the undo window began (DEL-7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli.context import (
    DIFFERENT,
    exit_code_of_outcome,
    instant_of,
    report_result,
    scheduled_work,
    services,
    worst_exit_code,
)
from message_lifecycle.app.cli.options import (
    ApproverOption,
    AsOfOption,
    DryRunOption,
    OutputOption,
    YesOption,
    approver_of,
    argument,
    flag,
    option,
)
from message_lifecycle.app.cli.screen import Output, Screen, emit, emit_line, show_progress
from message_lifecycle.app.rendering import ABSENT, Line, View
from message_lifecycle.model.errors import unknown_partition
from message_lifecycle.model.names import TopicName, TopicUri

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Scheduled, Work
    from message_lifecycle.app.services import Services

reclaim = typer.Typer(no_args_is_help=True, help="Give back the space of what was removed longer ago than the undo window.")
TopicsArgument = Annotated[list[str], argument("TOPIC...", "Topics, as `stream/topic` or `topic`.")]
ReclaimedArgument = Annotated[str | None, argument("TOPIC", "The topic: `stream/topic`, or `topic` alone in the stream `default`.")]
DeletedOption = Annotated[
    str | None,
    option(
        "--deleted",
        "PLAN",
        "In place of a topic: the plan that deleted one (`lifecycle topic list --deleted`), which is then removed for good.",
    ),
]


def run(
    ctx: typer.Context,
    topics: TopicsArgument,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ApproverOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Plan, stage, gate, publish and verify at once; for documents, make snapshots and purge the changes that all clients have.

    A plan over the limits waits for a person: exit status 5. With --output json, one object per topic.
    """
    return run_each(ctx, topics, as_of, yes, by, output, scheduled_work)


def run_each(
    ctx: typer.Context,
    topics: list[str],
    as_of: str | None,
    yes: str | None,
    by: str | None,
    output: Output,
    work: Callable[[Services, TopicName], Scheduled],
) -> int:
    """Run all steps of an operation for each topic; return the worst exit status."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.known import error_of_one_topic
    from message_lifecycle.app.views.erasures import TopicError
    from message_lifecycle.app.views.state import result_view

    approver = approver_of(yes, by)
    s = services(ctx)
    names = [TopicName.parse(topic) for topic in topics]
    at = instant_of(s, as_of)
    screen = Screen()
    statuses = []
    for number, name in enumerate(names):
        if number and output is Output.text:
            screen.draw([""])
        try:
            with show_progress(f"{name}: plan, stage, gate, publish, verify"):
                outcome = steps.run(s, name, as_of=at, approver=approver, work=work(s, name))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            alone = error_of_one_topic(s, name, error)
            view: View = TopicError(topic=name, error=alone.code, message=str(alone))
            statuses.append(alone.exit_code)
        else:
            view = result_view(s, outcome)
            statuses.append(exit_code_of_outcome(outcome.name))
        if output is Output.json:
            emit_line(view)
        else:
            screen.draw(view.screen_blocks())
    return worst_exit_code(statuses)


def compact(
    ctx: typer.Context,
    topic: Annotated[
        str, argument("TOPIC", "The topic: `stream/topic`, or persistent://TENANT/NAMESPACE/TOPIC for the stream TENANT.NAMESPACE.")
    ],
    as_of: AsOfOption = None,
    status: Annotated[bool, flag("--status", "Only tell how compaction stands; 1 where it ended badly.")] = False,
    dry_run: DryRunOption = False,
    anew: Annotated[bool, flag("--anew", "Begin anew from the log where the view's table is gone; what it alone had is lost.")] = False,
    yes: YesOption = None,
    by: ApproverOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Bring a topic's compacted view up to date: each key's latest message; the log itself stays as it is."""
    from message_lifecycle.app.operations.registry import preview
    from message_lifecycle.app.requests import compact as bring
    from message_lifecycle.app.requests import forget_view
    from message_lifecycle.app.views.compaction import compaction_view
    from message_lifecycle.app.views.plans import plan_view

    if sum((status, dry_run, anew)) > 1:
        raise typer.BadParameter("give only one of --status, --dry-run and --anew")
    approver = approver_of(yes, by)
    s = services(ctx)
    uri = _check_uri(s, topic)
    name = uri.name
    if status:
        found = compaction_view(s, name)
        emit(output, found)
        return DIFFERENT if found.status == "ERROR" else 0
    at = instant_of(s, as_of)
    note = None if uri.partition is None else f"Compaction covers all partitions of {name}, not only partition {uri.partition}."
    if note and output is Output.text:
        Screen().draw([Line(note, wraps=True)])
    if dry_run:
        with show_progress(f"planning {name}"):
            planned = plan_view(preview(s, name, as_of=at, work="compaction"))
        emit(output, planned)
        return 0
    if anew:
        forget_view(s, name)
    with show_progress(f"{name}: plan, stage, gate, publish, verify"):
        outcome = bring(s, name, as_of=at, approver=approver)
    return report_result(s, output, outcome, note=note)


def _check_uri(s: Services, text: str) -> TopicUri:
    """Raises InvalidTopicUri, UnknownTopic, UnknownPartition."""
    uri = TopicUri.parse(text)
    partitions = s.topics.describe(uri.name).partitions
    if uri.partition is not None and uri.partition >= partitions:
        raise unknown_partition(str(uri.name), uri.partition, range(partitions))
    return uri


@reclaim.command("plan")
def plan_reclaim(
    ctx: typer.Context,
    topic: ReclaimedArgument = None,
    deleted: DeletedOption = None,
    as_of: AsOfOption = None,
    files: Annotated[bool, flag("--files", "List the name of every file that goes, too.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the snapshots and files of a topic's tables that nothing needs any more; record and remove nothing."""
    from message_lifecycle.app.operations.reclaim import find_staying_snapshots
    from message_lifecycle.app.operations.registry import preview
    from message_lifecycle.app.views.plans import plan_view

    s = services(ctx)
    at = instant_of(s, as_of)
    name, work = _subject(s, topic, deleted)
    with show_progress(f"planning {name}"):
        made = preview(s, name, as_of=at, work=work)
        staying = find_staying_snapshots(s, made) if deleted is None else ABSENT
    names = [file for removal in made.file_removals for file in removal.files] if files else ABSENT
    emit(output, plan_view(made, names=names, staying=staying))


@reclaim.command("run")
def run_reclaim(
    ctx: typer.Context,
    topic: ReclaimedArgument = None,
    deleted: DeletedOption = None,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ApproverOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Plan, gate, expire the snapshots, remove the files, and verify; no undo is possible afterwards."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.operations.reclaim import end_lost
    from message_lifecycle.app.requests import reclaim_deleted

    approver = approver_of(yes, by)
    s = services(ctx)
    at = instant_of(s, as_of)
    lost = None if deleted is None or topic is not None else _find_lost_reclaim(s, deleted)
    if lost is not None:
        return report_result(s, output, end_lost(s, lost))
    name, work = _subject(s, topic, deleted)
    with show_progress(f"{name}: plan, gate, publish, verify"):
        if deleted is None:
            outcome = steps.run(s, name, as_of=at, approver=approver, work=work, requested_by=by)
        else:
            outcome = reclaim_deleted(s, deleted, as_of=at, approver=approver, by=by)
    return report_result(s, output, outcome)


def _find_lost_reclaim(s: Services, beginning: str) -> str | None:
    """The reclaim of that name which has begun and which the ledger does not know."""
    from message_lifecycle.app.operations.reclaim import find_lost_reclaims

    found = [plan_id for plan_id in find_lost_reclaims(s) if beginning and plan_id.startswith(beginning)]
    return found[0] if len(found) == 1 else None


def _subject(s: Services, topic: str | None, deleted: str | None) -> tuple[TopicName, Work]:
    """Raises InvalidName, UnknownPlan, NothingDeleted."""
    from message_lifecycle.app.operations.reclaim import find_deletion
    from message_lifecycle.model.request import ReclaimDeleted

    if deleted is not None and topic is None:
        deletion = find_deletion(s, deleted)
        return deletion.topic, ReclaimDeleted(plan_id=deletion.plan_id)
    if topic is None or deleted is not None:
        raise typer.BadParameter("give either TOPIC, or --deleted PLAN")
    return TopicName.parse(topic), "reclaim"
