"""The card "Did it run?": what an administrator can say of a start of unknown outcome, and how it is read."""

from typing import Any

from django import forms
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from catalogue.admin.value_fields import MONOSPACE
from catalogue.database import run_without_connection
from connectors.formats.json import UnreadableJSON, parse_json
from executions.admin.callers import caller_of
from executions.models import Execution
from executions.resolving import (
    EngineSilent,
    ResolutionRefused,
    Traces,
    find_traces,
    resolve_as_ran,
    resolve_as_started,
)

NOT_TOLD = Traces(run_may_be_named=True, run_may_be_missing=False, key="")
"""Of a source whose settings cannot be used: whoever names a run is told why it cannot be asked about."""


class RunIdForm(forms.Form):
    run_id = forms.CharField(
        label="Run id at the engine",
        max_length=255,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )


class OutputForm(forms.Form):
    output = forms.CharField(
        label="What it answered, as JSON; empty if that is not known",
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, **MONOSPACE}),
    )


def describe_resolution(execution: Execution) -> dict[str, Any]:
    """What the card shows, of an execution that is unconfirmed."""
    traces = _traces_of(execution)
    return {
        "key": traces.key,
        "run_id_form": RunIdForm() if traces.run_may_be_named else None,
        "output_form": OutputForm() if traces.run_may_be_missing else None,
    }


def _traces_of(execution: Execution) -> Traces:
    # With the rows that are read on the loop of the connectors, where nothing can be fetched.
    at_hand = Execution.objects.select_related("workflow__source").get(pk=execution.pk)
    try:
        return run_without_connection(find_traces(at_hand))
    except EngineSilent:
        return NOT_TOLD


def resolve_as_said(request: HttpRequest, execution_id: str) -> tuple[Execution, str]:
    """It ran: what has become of the execution, and what to tell of that.

    Raises UnknownExecution and the subclasses of ResolutionRefused.
    """
    caller, run_id = caller_of(request), request.POST.get("run_id", "").strip()
    if run_id or "output" not in request.POST:
        started = resolve_as_started(execution_id, run_id, caller=caller)
        return run_without_connection(started), f"Resolved: the engine runs it as {run_id}."
    output = _read_output(request.POST["output"])
    ran = resolve_as_ran(execution_id, output, caller=caller)
    known = "its output is not known" if output is None else "with the output that you gave"
    return run_without_connection(ran), f"Resolved: it ran, {known}."


def _read_output(written: str) -> Any:
    if not written.strip():
        return None
    try:
        return parse_json(written.encode(errors="replace"))
    except UnreadableJSON as error:
        raise ResolutionRefused(f"What it answered is no JSON, so nothing was changed. {error}") from None
