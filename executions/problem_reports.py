"""What agents report that they miss: grouped and bounded, for people alone. No model reads these texts."""

import hashlib
import json
import math
import re

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from access.callers import Caller, Rate
from access.rates import seconds_until_free
from catalogue.exposure import current_catalogue, find_named
from catalogue.schemas import ArgumentProblem
from connectors.network.redaction import printable, shorten
from executions.models import ProblemReport
from executions.models.report import MAX_NAME, MAX_TEXT
from executions.refusals import InvalidArguments, TooManyCalls

NAME = "report_problem"
KEPT_LAST = 5  # Reports of a row
MAX_OF_TOOL, MAX_OF_OTHERS, MAX_ROWS = 20, 200, 1_000  # Others name no tool that their agent sees


def report_problem(caller: Caller, *, tool: str, tried: str, missing: str) -> None:
    """Raises InvalidArguments and TooManyCalls."""
    tool, tried, missing = _cut(tool, MAX_NAME), _cut(tried, MAX_TEXT), _cut(missing, MAX_TEXT)
    if not missing:
        raise InvalidArguments(NAME, [ArgumentProblem("/missing", "empty")], starts=False)
    rate = Rate(key=f"report:{caller.counted_as}", per_minute=2, at_once=10, whose="reporting problems")
    if (seconds := seconds_until_free(rate)) > 0:
        raise TooManyCalls(rate, retry_after=math.ceil(seconds))
    workflow = find_named(current_catalogue().seen_within(caller.bounds), tool)
    tool, is_tool = (tool, False) if workflow is None else (workflow.tool_name, True)
    words = re.findall(r"\w+", missing.casefold()) or [missing]
    key, now = hashlib.sha256(json.dumps([is_tool, tool, words]).encode()).hexdigest(), timezone.now()
    made = {"tool": tool, "is_tool": is_tool, "missing": missing, "first_at": now, "last_at": now}
    latest = {"at": now.isoformat(), "caller": shorten(caller.name, MAX_NAME), "tried": tried}
    with transaction.atomic():
        # Of two first reports, the second waits for the first and is counted in its row.
        row, is_new = ProblemReport.objects.select_for_update().get_or_create(key=key, defaults=made)
        if row.resolved_at is not None:
            row.resolved_at, row.first_at, row.times = None, now, 0
        row.times, row.last_at, row.last = row.times + 1, now, [latest, *row.last][:KEPT_LAST]
        row.save()
        if is_new:
            others = ProblemReport.objects.exclude(pk=row.pk)
            alike = others.filter(is_tool=True, tool=tool) if is_tool else others.filter(is_tool=False)
            _keep(alike, MAX_OF_TOOL if is_tool else MAX_OF_OTHERS)
            _keep(others, MAX_ROWS)


def _cut(text: str, most: int) -> str:
    return shorten(printable(text[: most + 1]), most)


def _keep(others: QuerySet[ProblemReport], most: int) -> None:
    """Leaves room for one more. Resolved rows go first, then those that were not reported for longest."""
    ordered = others.order_by(F("resolved_at").desc(nulls_first=True), "-last_at", "-pk")
    if beyond := list(ordered.values_list("pk", flat=True)[most - 1 :][:MAX_ROWS]):
        free = ProblemReport.objects.filter(pk__in=beyond).select_for_update(skip_locked=True)
        ProblemReport.objects.filter(pk__in=list(free.values_list("pk", flat=True))).delete()
