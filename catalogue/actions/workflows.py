from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from catalogue.approval_rules import check_form as check_rules
from catalogue.approval_rules import find_rule_problems
from catalogue.argument_overrides import check_form as check_overrides
from catalogue.argument_overrides import find_override_problems
from catalogue.database import in_batches
from catalogue.history import Actor, change_rows, record_change, record_deletion, set_fields
from catalogue.models import Review, Revision, Source, Workflow
from catalogue.naming import listed
from catalogue.presentation import CURATORS_HINTS

OVERRIDABLE = (
    "tool_name", "only_in_toolsets", "title_override", "description_override", "tags_override",
    "argument_overrides",
    "timeout_seconds", "inline_wait_seconds", "execution_type_override", "on_disconnect", "reattach",
    "max_concurrent", "calls_per_minute", "calls_at_once", *CURATORS_HINTS, "icon_override",
    "offered_as_prompt", "cache_seconds", "approval_required", "approval_rules", "approvers_needed",
    "answered_by", "answer_group",
)  # fmt: skip

MAX_FORMER_NAMES = 20
MAX_ALIAS_DAYS = 365
NAMED = 5
BATCH = 500


class UnknownWorkflows(Exception):
    def __init__(self, names: list[str]) -> None:
        super().__init__(f"No such workflow: {', '.join(names)}")
        self.names = names


def choose_workflows(
    source: Source, names: Iterable[str] | None, *, missing: bool = False
) -> QuerySet[Workflow]:
    """Returns those with these tool names, names or engine's ids; without names all that are present, or all
    that are missing. Raises UnknownWorkflows."""
    workflows = Workflow.objects.filter(source=source)
    if names is None:
        return workflows.exclude(missing_since=None) if missing else workflows.filter(missing_since=None)
    wanted = list(names)
    chosen = workflows.filter(Q(tool_name__in=wanted) | Q(name__in=wanted) | Q(upstream_id__in=wanted))
    known = {text for row in chosen.values_list("tool_name", "name", "upstream_id") for text in row}
    if unknown := [name for name in wanted if name not in known]:
        raise UnknownWorkflows(unknown)
    return chosen


@transaction.atomic
def enable_workflows(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Enable them; they need no review as new workflows then. Returns how many were not enabled before."""
    # Those that the queryset finds now: it may depend on what is enabled.
    keys = list(workflows.values_list("pk", flat=True))
    chosen = Workflow.objects.filter(pk__in=keys)
    changed = change_rows(by, chosen, "Enabled.", named_by="tool_name", enabled=True)
    Review.objects.new_workflows().filter(workflow__in=keys).delete()
    return changed


@dataclass(frozen=True, slots=True)
class Enabled:
    changed: int  # How many were not enabled before
    changed_since: list[str]  # Tool names of workflows that the engine has changed since; they stay hidden

    def refusal(self) -> str:
        """Returns a sentence about those that stay hidden; empty if there are none."""
        if not self.changed_since:
            return ""
        names = listed(self.changed_since, NAMED)
        return f"Still hidden, because the engine has changed them since: {names}. Review them again."


@transaction.atomic
def enable_if_unchanged(seen: Mapping[int, str], *, by: Actor | None = None) -> Enabled:
    """Enable workflows whose content hash is still the one shown to the curator; `seen` has it by key. Hidden
    workflows follow their engine, so the content may have changed by the time of the click."""
    Revision.lock()
    hidden = Workflow.objects.filter(pk__in=seen, enabled=False).order_by("tool_name")
    shown = list(hidden.values_list("pk", "tool_name", "content_hash"))
    changed_since = {key: name for key, name, content_hash in shown if content_hash != seen[key]}
    chosen = Workflow.objects.filter(pk__in=seen.keys() - changed_since.keys())
    return Enabled(enable_workflows(chosen, by=by), list(changed_since.values()))


def disable_workflows(workflows: QuerySet[Workflow], *, by: Actor | None = None) -> int:
    """Returns how many were enabled before."""
    return change_rows(by, workflows, "Disabled.", named_by="tool_name", enabled=False)


def mark_read_only(workflows: QuerySet[Workflow], *, by: Actor) -> int:
    """Returns how many were not marked before."""
    marked = {"read_only_hint": True, "destructive_hint": None}
    return change_rows(by, workflows, "Marked as read-only.", named_by="tool_name", **marked)


def clear_hints(workflows: QuerySet[Workflow], *, by: Actor) -> int:
    """Returns how many had a curator's hint."""
    none = dict.fromkeys(CURATORS_HINTS)
    return change_rows(by, workflows, "Restored the engine's hints.", named_by="tool_name", **none)


@dataclass(frozen=True, slots=True)
class Removed:
    removed: int
    listed: int  # Kept, because the engine lists them
    on_record: int  # Kept, because of executions

    def kept_message(self) -> str:
        """Empty if none were kept."""
        reasons = []
        if self.listed:
            reasons.append(f"{self.listed:,} that the engine lists; hide them with Disable")
        if self.on_record:
            reasons.append(f"{self.on_record:,} with executions on record, until the retention removes these")
        return f"Kept: {', and '.join(reasons)}." if reasons else ""


@transaction.atomic
def remove_missing(workflows: QuerySet[Workflow], *, by: Actor) -> Removed:
    """Delete those that the engine no longer lists and that have no executions, with curators' decisions; the
    history keeps the decisions. If the engine lists one again, it is a new workflow."""
    # No listing brings one back meanwhile.
    Revision.lock()
    gone = workflows.exclude(missing_since=None)
    missing = set(gone.values_list("pk", flat=True))
    executions: Any = Workflow._meta.get_field("executions").related_model
    recorded = Exists(executions.objects.filter(workflow=OuterRef("pk")))
    on_record = set(gone.filter(recorded).values_list("pk", flat=True))
    removed = sorted(missing - on_record)
    for keys in in_batches(removed, BATCH):
        batch = Workflow.objects.filter(pk__in=keys)
        record_deletion(by, batch, "Removed: the engine no longer lists it.")
        batch.delete()
    return Removed(len(removed), workflows.all().count() - len(on_record), len(on_record))


def known_tags() -> list[str]:
    """Sorted without regard to case."""
    tags: set[str] = set()
    for engines, ours in Workflow.objects.order_by().values_list("tags", "tags_override").distinct():
        tags.update(engines if ours is None else ours)
    return sorted(tags, key=str.casefold)


@transaction.atomic
def change_tags(
    workflows: QuerySet[Workflow], *, add: Iterable[str] = (), remove: Iterable[str] = (), by: Actor
) -> int:
    """Tags are removed without regard to case. Returns how many workflows changed."""
    added, removed = dict.fromkeys(add), {tag.casefold() for tag in remove}
    Revision.lock()
    keys = list(workflows.values_list("pk", flat=True))
    rows = Workflow.objects.filter(pk__in=keys).only("tool_name", "tags", "tags_override").order_by()
    changed = []
    for workflow in rows:
        kept = [tag for tag in workflow.shown_tags if tag.casefold() not in removed]
        tags = [*kept, *(tag for tag in added if tag not in kept)]
        if tags != workflow.shown_tags:
            # The engine's own tags are no override.
            workflow.tags_override = None if tags == workflow.tags else tags
            changed.append(workflow)
    Workflow.objects.bulk_update(changed, ["tags_override"], batch_size=500)
    if changed:
        Revision.bump()
    record_change(by, changed, "Changed tags.")
    return len(changed)


def override_workflow(workflow: Workflow, *, alias_days: int | None = None, **decisions: Any) -> Workflow:
    """Set the curator's overrides. Raises ValidationError keyed by field. `alias_days`: how long calls by the
    old name still run. If the name stays, this applies to the last former name and to live aliases. 0: such
    calls are refused immediately."""
    set_fields(workflow, decisions, allowed=OVERRIDABLE)
    with transaction.atomic():
        Revision.lock()
        workflow.full_clean()
        if misfits := find_misfits(workflow.input_schema, decisions):
            raise ValidationError(misfits)
        written = list(decisions)
        if "tool_name" in decisions or alias_days is not None:
            _rename(workflow, alias_days)
            written += ["former_tool_names", "tool_aliases"]
        workflow.save(update_fields=written)
    return workflow


def find_misfits(schema: dict[str, Any], decisions: Mapping[str, Any]) -> dict[str, list[str]]:
    """Errors by field where well-formed decisions do not fit the engine's schema."""
    overrides = decisions.get("argument_overrides", {})
    problems = find_override_problems(schema, overrides) if not check_overrides(overrides) else {}
    rules = decisions.get("approval_rules", [])
    misfits = {
        "argument_overrides": [f"{name}: {problem}" for name, problem in problems.items()],
        "approval_rules": find_rule_problems(schema, rules) if not check_rules(rules) else [],
    }
    return {field: told for field, told in misfits.items() if told}


def _rename(workflow: Workflow, alias_days: int | None) -> None:
    """Reads the stored names, because the given workflow already has the new one. Raises ValidationError."""
    row = Workflow.objects.only("tool_name", "former_tool_names", "tool_aliases").get(pk=workflow.pk)
    if alias_days is not None and not 0 <= alias_days <= MAX_ALIAS_DAYS:
        raise ValidationError({"alias_days": f"This must be from 0 to {MAX_ALIAS_DAYS} days."})
    is_renamed = row.tool_name != workflow.tool_name
    names = dict.fromkeys([row.tool_name, *row.former_tool_names])
    former = [name for name in names if name != workflow.tool_name][:MAX_FORMER_NAMES]
    aliases = {name: until for name, until in row.live_aliases.items() if name in former}
    if alias_days is not None:
        concerned = {row.tool_name} if is_renamed else {*aliases, *former[:1]}
        # A name that another workflow has taken meanwhile belongs to that workflow.
        others = Workflow.objects.exclude(pk=row.pk)
        concerned -= {*others.filter(tool_name__in=concerned).values_list("tool_name", flat=True)}
        concerned -= others.live_aliases().keys()
        until = timezone.now() + timedelta(days=alias_days)
        aliases |= dict.fromkeys((name for name in concerned if name in former), until)
    workflow.former_tool_names = former
    now = timezone.now()
    workflow.tool_aliases = {name: until.isoformat() for name, until in aliases.items() if until > now}
