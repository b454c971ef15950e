"""Whether calls would start a run now, and if not, why. Records, counts and sends nothing."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from access.callers import Caller
from catalogue.argument_overrides import settle_arguments
from catalogue.descriptions import current_outages
from catalogue.exposure import confirmed_catalogue, enabled_filters, explain_exposure
from catalogue.models import Workflow
from executions import approvals
from executions.refusals import InvalidArguments, UnknownTool
from executions.starting import workflow_named

MAX_CALLS = 50


class Obstacle(StrEnum):
    UNKNOWN_TOOL = "unknown_tool"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    SCHEMA_CHANGED = "schema_changed"
    INVALID_ARGUMENTS = "invalid_arguments"
    NEEDS_APPROVAL = "needs_approval"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    tool: str
    arguments: dict[str, Any] | None = None  # None: not known yet, and not checked
    schema_hash: str = ""  # Of the input schema that the caller prepared for; empty: any


@dataclass(slots=True)
class Verdict:
    tool: str
    schema_hash: str = ""  # Of the present input schema; empty for an unknown tool
    problems: list[tuple[Obstacle, str]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        problems = [{"code": code.value, "message": message} for code, message in self.problems]
        described = {"tool": self.tool, "ready": not problems, "schema_hash": self.schema_hash}
        return described | ({"problems": problems} if problems else {})


def check_calls(calls: Sequence[PlannedCall], caller: Caller, *, explains: bool = False) -> list[Verdict]:
    """Returns a verdict for each call. `explains`: the caller may know of hidden workflows."""
    shown = confirmed_catalogue().seen_within(caller.bounds)
    away = {outage.source: outage for outage in current_outages()}
    reasons = _explain_hidden({call.tool for call in calls} - shown.keys()) if explains else {}
    verdicts = []
    for call in calls:
        verdict = Verdict(call.tool)
        verdicts.append(verdict)
        try:
            workflow = workflow_named(shown, call.tool)
        except UnknownTool as error:
            verdict.problems.append((Obstacle.UNKNOWN_TOOL, reasons.get(call.tool, str(error))))
            continue
        verdict.schema_hash = schema_hash(workflow)
        if (outage := away.get(workflow.source.name)) is not None:
            message = f"The engine {outage.source} cannot be listed at present. {outage.reason}"
            verdict.problems.append((Obstacle.ENGINE_UNAVAILABLE, message))
        if call.schema_hash not in ("", verdict.schema_hash):
            message = "The input schema is another than the one with this hash. get_workflow_info shows it."
            verdict.problems.append((Obstacle.SCHEMA_CHANGED, message))
        _check_arguments(verdict, workflow, call.arguments, caller)
    return verdicts


def schema_hash(workflow: Workflow) -> str:
    """Returns 16 hexadecimal digits of SHA-256 that identify the input schema as agents see it."""
    if "schema_hash" not in workflow.derived:
        schema = json.dumps(workflow.served_input_schema, sort_keys=True)
        workflow.derived["schema_hash"] = hashlib.sha256(schema.encode()).hexdigest()[:16]
    found: str = workflow.derived["schema_hash"]
    return found


def _check_arguments(
    verdict: Verdict, workflow: Workflow, arguments: dict[str, Any] | None, caller: Caller
) -> None:
    settled: Mapping[str, Any] = {}
    if arguments is not None:
        checked = settle_arguments(workflow.input_schema, workflow.argument_overrides, arguments)
        if checked.problems:
            message = str(InvalidArguments(workflow.tool_name, checked.problems, starts=False))
            verdict.problems.append((Obstacle.INVALID_ARGUMENTS, message))
            return
        settled = checked.arguments
    need = approvals.find_need(workflow, settled) if workflow.may_need_approval else None
    if need is not None:
        binding = approvals.bind(workflow, settled, caller.key)
        if arguments is None or approvals.find_standing(binding, need) is None:
            verdict.problems.append((Obstacle.NEEDS_APPROVAL, " ".join(need.reasons)))


def _explain_hidden(names: set[str]) -> dict[str, str]:
    chain = enabled_filters()
    hidden = Workflow.objects.filter(tool_name__in=names).select_related("source")
    found = {workflow.tool_name: explain_exposure(workflow, chain).visibility for workflow in hidden}
    return {name: f"Agents cannot call it: {visibility}." for name, visibility in found.items()}
