from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from catalogue.actions.workflows import UnknownWorkflows
from catalogue.history import Actor, record_change, remember_relations, set_fields
from catalogue.models import Revision, Toolset, ToolsetRule, Workflow

CHANGEABLE = (
    "slug", "title", "description", "enabled", "mode", "portable", "cards", "token_budget",
    "inline_wait_seconds", "reserved_for",
    "calls_per_minute", "calls_at_once",
    "approval_required", "approvers_needed",
)  # fmt: skip
POSITIONS_APART = 10


@transaction.atomic
def write_toolset(
    toolset: Toolset,
    *,
    picked: Collection[str] | None = None,
    rules: Iterable[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> Toolset:
    """Create or change a toolset. `picked` (tool names) and `rules` (in order) are each replaced as a whole;
    omitted parts stay. Raises ValidationError by field, or UnknownWorkflows, and then changes nothing."""
    set_fields(toolset, fields, allowed=CHANGEABLE)
    toolset.full_clean()
    toolset.save()
    if picked is not None:
        keys = dict(Workflow.objects.filter(tool_name__in=picked).values_list("tool_name", "pk"))
        if missing := [name for name in picked if name not in keys]:
            raise UnknownWorkflows(missing)
        toolset.picked.set(keys.values())
    if rules is not None:
        toolset.rules.all().delete()
        for number, described in enumerate(rules, start=1):
            rule = ToolsetRule(toolset=toolset, **{"position": number * POSITIONS_APART, **described})
            rule.full_clean()
            rule.save()
    return toolset


@transaction.atomic
def add_to_toolset(toolset: Toolset, workflows: QuerySet[Workflow], *, by: Actor) -> int:
    """Returns how many were not picked before."""
    Revision.lock()
    keys = set(workflows.values_list("pk", flat=True))
    added = Workflow.objects.filter(pk__in=keys - set(toolset.picked.values_list("pk", flat=True)))
    chosen = list(added.only("tool_name").order_by())
    if chosen:
        remember_relations(toolset)
        toolset.picked.add(*chosen)
        record_change(by, [toolset], f"Picked {len(chosen)} more by hand.")
        record_change(by, chosen, f"Added to the toolset {toolset}.")
    return len(chosen)


@transaction.atomic
def remove_from_toolset(toolset: Toolset, workflows: QuerySet[Workflow], *, by: Actor) -> int:
    """Returns how many were picked; those that its rules include stay in it."""
    Revision.lock()
    keys = list(workflows.values_list("pk", flat=True))
    chosen = list(toolset.picked.filter(pk__in=keys).only("tool_name").order_by())
    if chosen:
        remember_relations(toolset)
        toolset.picked.remove(*chosen)
        record_change(by, [toolset], f"Removed {len(chosen)} picked by hand.")
        record_change(by, chosen, f"Removed from the toolset {toolset}.")
    return len(chosen)
