"""Publishing a selection of workflows in a toolset."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.actions.toolsets import add_to_toolset
from catalogue.actions.workflows import enable_if_unchanged
from catalogue.exposure import Explanation, enabled_filters, explain_exposure, members_of_toolsets
from catalogue.history import Actor, change_rows
from catalogue.models import Revision, Toolset, Workflow

MAX_PUBLISHED = 500


@dataclass(frozen=True, slots=True)
class Publication:
    """What becomes of selected workflows when they are published; each is in one of the first three."""

    added: list[Workflow] = field(default_factory=list)  # Hidden so far
    exposed: list[Workflow] = field(default_factory=list)  # Exposed already, and not changed
    left_out: list[tuple[Workflow, Explanation]] = field(default_factory=list)  # Enabled, still not exposed
    flagged: list[Workflow] = field(default_factory=list)  # Of the first two: a curator decides on each
    elsewhere: list[str] = field(default_factory=list)  # Enabled toolsets that show some of the added, too

    @property
    def offered(self) -> list[Workflow]:
        return [*self.added, *self.exposed]


def plan_publication(keys: Collection[int]) -> Publication:
    """Uses a constant number of queries."""
    chain, plan = enabled_filters(), Publication()
    rows = Workflow.objects.filter(pk__in=keys).select_related("source").order_by("tool_name")
    for workflow in rows:
        was_enabled, workflow.enabled = workflow.enabled, True
        explanation = explain_exposure(workflow, chain)
        workflow.enabled = was_enabled
        if not explanation.is_exposed:
            plan.left_out.append((workflow, explanation))
            continue
        (plan.exposed if was_enabled else plan.added).append(workflow)
        if workflow.warning or workflow.resembles:
            plan.flagged.append(workflow)
    added, members = {workflow.pk for workflow in plan.added}, members_of_toolsets()
    on = Toolset.objects.filter(enabled=True).values_list("slug", flat=True)
    plan.elsewhere.extend(slug for slug in on if not added.isdisjoint(members.get(slug, ())))
    return plan


@transaction.atomic
def publish_workflows(toolset: Toolset, seen: Mapping[int, str], *, only_there: bool, by: Actor) -> int:
    """Pick the workflows for the toolset, and enable hidden ones. `seen`: the content hashes that the curator
    saw, by key. `only_there`: hidden ones are exposed only in toolsets; others stay as they are. Raises
    ValidationError, and then changes nothing. Returns how many it enabled."""
    Revision.lock()
    if len(seen) > MAX_PUBLISHED:
        raise ValidationError(f"At most {MAX_PUBLISHED} workflows can be published at once.")
    hidden = Workflow.objects.filter(pk__in=seen, enabled=False)
    change_rows(by, hidden, "Chose where it is exposed.", named_by="tool_name", only_in_toolsets=only_there)
    enabled = enable_if_unchanged(seen, by=by)
    if enabled.changed_since:
        raise ValidationError(enabled.refusal())
    add_to_toolset(toolset, Workflow.objects.filter(pk__in=seen), by=by)
    return enabled.changed
