"""What curators do to workflows, for every door."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from catalogue.history import Actor, record_change
from catalogue.models import Review, Revision, Source, Workflow
from catalogue.presentation import CURATORS_HINTS

OVERRIDABLE = (
    "tool_name",
    "title_override",
    "description_override",
    "tags_override",
    "timeout_seconds",
    "inline_wait_seconds",
    "execution_type_override",
    "on_disconnect",
    "reattach",
    "max_concurrent",
    *CURATORS_HINTS,
    "icon_override",
    "offered_as_prompt",
    "cache_seconds",
)


MOST_FORMER_NAMES = 20


class UnknownWorkflows(Exception):
    """Some of the names belong to no workflow of the source."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"No such workflow: {', '.join(names)}")
        self.names = names


def choose_workflows(source: Source, names: Iterable[str] | None = None) -> QuerySet[Workflow]:
    """The source's workflows of these tool names, workflow names or engine's ids.

    Without names all that are present. Raises UnknownWorkflows.
    """
    workflows = Workflow.objects.filter(source=source)
    if names is None:
        return workflows.filter(missing_since=None)
    wanted = list(names)
    chosen = workflows.filter(Q(tool_name__in=wanted) | Q(name__in=wanted) | Q(upstream_id__in=wanted))
    known = {text for row in chosen.values_list("tool_name", "name", "upstream_id") for text in row}
    if unknown := [name for name in wanted if name not in known]:
        raise UnknownWorkflows(unknown)
    return chosen


def enable_workflows(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Let agents see them, filters permitting. Returns how many were not enabled before."""
    return _decide(workflows, by, "Enabled.", enabled=True)


def disable_workflows(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Hide them and refuse calls. Returns how many were enabled before."""
    return _decide(workflows, by, "Disabled.", enabled=False)


def mark_read_only(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Say that they change nothing, whatever was said before. Returns for how many that is new."""
    return _decide(workflows, by, "Marked as read-only.", read_only_hint=True, destructive_hint=None)


def clear_hints(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Take the engine's word for what they do again. Returns how many had a curator's."""
    return _decide(workflows, by, "Took the engine's hints again.", **dict.fromkeys(CURATORS_HINTS))


def override_workflow(workflow: Workflow, **decisions: Any) -> Workflow:
    """Set the curator's own words and limits. Raises ValidationError keyed by field."""
    unknown = set(decisions) - set(OVERRIDABLE)
    if unknown:
        raise TypeError(f"Not for a curator to decide: {', '.join(sorted(unknown))}")
    for name, value in decisions.items():
        setattr(workflow, name, value)
    workflow.full_clean()
    with transaction.atomic():
        Revision.lock()
        if "tool_name" in decisions:
            workflow.former_tool_names = _former_names(workflow)
            decisions["former_tool_names"] = workflow.former_tool_names
        workflow.save(update_fields=list(decisions))
    return workflow


def _former_names(workflow: Workflow) -> list[str]:
    """By those that the row has: the workflow at hand has its new name already."""
    known = Workflow.objects.filter(pk=workflow.pk).values_list("tool_name", "former_tool_names").first()
    name, former = known or (workflow.tool_name, [])
    names = dict.fromkeys([name, *former])
    return [name for name in names if name != workflow.tool_name][:MOST_FORMER_NAMES]


@transaction.atomic
def _decide(workflows: QuerySet[Workflow], by: Actor | None, told: str, **decisions: bool | None) -> int:
    """Of whom it is not said who decided (`by`), no history is kept."""
    Revision.lock()
    # By primary key, because the callers' querysets may be ordered, sliced or joined.
    keys = list(workflows.values_list("pk", flat=True))
    changing = Workflow.objects.filter(pk__in=keys).exclude(**decisions)
    if by is not None:
        record_change(by, changing.only("tool_name").order_by(), told)
    if decisions.get("enabled"):
        Review.objects.new_workflows().filter(workflow__in=keys).delete()
    changed = changing.update(**decisions)
    if changed:
        Revision.bump()
    return changed
