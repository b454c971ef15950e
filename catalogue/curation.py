"""What curators do to workflows, for every door."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from catalogue.models import Revision, Source, Workflow

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
)


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


def enable_workflows(workflows: QuerySet[Workflow]) -> int:
    """Let agents see them, filters permitting. Returns how many were not enabled before."""
    return _set_enabled(workflows, enabled=True)


def disable_workflows(workflows: QuerySet[Workflow]) -> int:
    """Hide them and refuse calls. Returns how many were enabled before."""
    return _set_enabled(workflows, enabled=False)


def override_workflow(workflow: Workflow, **decisions: Any) -> Workflow:
    """Set the curator's own words and limits. Raises ValidationError keyed by field."""
    unknown = set(decisions) - set(OVERRIDABLE)
    if unknown:
        raise TypeError(f"Not for a curator to decide: {', '.join(sorted(unknown))}")
    for name, value in decisions.items():
        setattr(workflow, name, value)
    workflow.full_clean()
    workflow.save(update_fields=list(decisions))
    return workflow


@transaction.atomic
def _set_enabled(workflows: QuerySet[Workflow], *, enabled: bool) -> int:
    Revision.lock()
    # By primary key, because the callers' querysets may be ordered, sliced or joined.
    keys = list(workflows.values_list("pk", flat=True))
    changed = Workflow.objects.filter(pk__in=keys, enabled=not enabled).update(enabled=enabled)
    if changed:
        Revision.bump()
    return changed
