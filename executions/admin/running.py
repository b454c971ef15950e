import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from unfold import widgets

from catalogue.admin.base import ButtonsMixin, Link
from catalogue.admin.form_fields import MONOSPACE, NotReadable, read_value, switch, text_area, write_value
from catalogue.admin.rendering import DASH, ago, duration, link, link_if_allowed, side_by_side, table
from catalogue.argument_overrides import constants_of
from catalogue.models import Workflow
from catalogue.served_schemas import Input, Inputs, Place, inputs_at, required_first
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of, steps_of
from executions.admin.page import caller_of, state_badge
from executions.models import Execution, ExecutionPayload
from executions.models.lifecycle import StartRequest
from executions.refusals import IdempotencyConflict, InvalidArguments, StartRefused
from executions.starting import create_execution
from executions.wakeups import request_poll

PREFIX = "argument"
SCALARS = {"string", "integer", "number", "boolean"}
TEXT_OR_JSON = "Enter text as it is, and all other values as JSON."
SHORT = 100  # Longest text with a single-line field
MAX_CHOICES = 200


class ArgumentField(forms.CharField):
    """A value as text; empty: left out. The schema checks the value."""

    def __init__(self, name: str, kind: str, *, about: str, **common: Any) -> None:
        super().__init__(label=name, required=False, strip=False, **common)
        self.kind = kind
        self.about = about

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Typed) else write_value(value, self.kind)

    def bound_data(self, data: Any, initial: Any) -> Any:
        return None if data is None else Typed(data)

    def clean(self, value: Any) -> Any:
        """None: left out, unlike null."""
        if not value:
            return None
        try:
            return Given(self.read(str(value)))
        except NotReadable as problem:
            raise forms.ValidationError(str(problem)) from None

    def read(self, text: str) -> Any:
        return read_value(text, self.kind)


class Typed(str):
    pass


class Given:
    def __init__(self, value: Any) -> None:
        self.value = value


class OneOfField(ArgumentField):
    """A choice of the schema's values, which the browser sends as JSON."""

    def __init__(self, name: str, kind: str, *, values: Iterable[Any], **common: Any) -> None:
        choices = [("", "(left out)"), *((json.dumps(value), _shown(value)) for value in values)]
        super().__init__(name, kind, widget=widgets.UnfoldAdminSelectWidget(choices=choices), **common)

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Typed) else json.dumps(value)

    def read(self, text: str) -> Any:
        return read_value(text, "any")


class ListField(ArgumentField):
    """Scalars, one per line; as JSON if lines are ambiguous."""

    def __init__(self, name: str, *, item: str, **common: Any) -> None:
        super().__init__(name, "array", **common)
        self.item = item

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, Typed):
            return value
        if isinstance(value, list):
            lines = [write_value(one, self.item) for one in value]
            if lines and all(line.strip() and "\n" not in line for line in lines) and lines[0][0] != "[":
                return "\n".join(lines)
        return json.dumps(value, ensure_ascii=False)

    def read(self, text: str) -> Any:
        if text.lstrip().startswith("["):
            return read_value(text, "array")
        return [read_value(line.strip(), self.item) for line in text.splitlines() if line.strip()]


class MomentField(ArgumentField):
    """A time in the product's time zone; the schema gets it with its offset."""

    def prepare_value(self, value: Any) -> Any:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            return value
        local = timezone.localtime(moment) if moment.tzinfo and not isinstance(value, Typed) else moment
        return local.replace(tzinfo=None).isoformat(timespec="seconds")

    def read(self, text: str) -> Any:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise NotReadable("Enter a valid date and time.") from None
        return (moment if moment.tzinfo else timezone.make_aware(moment)).isoformat()


class RunForm(forms.Form):
    """The arguments of a run. `mode` says whether the fields or the JSON text apply."""

    key = forms.UUIDField(widget=forms.HiddenInput)  # Of this form: submitted twice, it runs once
    mode = forms.ChoiceField(choices=[("form", "Form"), ("json", "JSON")], widget=forms.HiddenInput)
    json = forms.CharField(
        label="Arguments, as a JSON object",
        required=False,
        strip=False,
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 12, **MONOSPACE}),
    )
    fresh = switch("Run even if a cached result is available")
    sure = switch("Run even though the workflow may delete or overwrite data")

    def __init__(self, workflow: Workflow, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.inputs = inputs_at(Place(schema := workflow.offered_input_schema, schema))
        self.names = required_first(self.inputs.properties, self.inputs.required, schema)
        self.is_destructive = workflow.effective_hints.get("destructiveHint") is True
        if workflow.effective_cache_seconds is None:
            del self.fields["fresh"]
        if not self.is_destructive:
            del self.fields["sure"]
        for number, name in enumerate(self.names):
            self.fields[f"{PREFIX}-{number}"] = field_for(name, self.inputs)

    @property
    def argument_fields(self) -> list[forms.BoundField]:
        return [self[f"{PREFIX}-{number}"] for number in range(len(self.names))]

    @property
    def own_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("fresh", "sure") if name in self.fields]

    @property
    def arguments(self) -> dict[str, Any]:
        if self.cleaned_data.get("mode") == "json":
            return self.cleaned_data.get("json") or {}
        given = (
            (name, self.cleaned_data.get(f"{PREFIX}-{number}")) for number, name in enumerate(self.names)
        )
        return {name: value.value for name, value in given if value is not None}

    def full_clean(self) -> None:
        super().full_clean()
        if not self.is_bound or self.cleaned_data.get("mode") != "json":
            return
        # Hidden fields do not count.
        for number in range(len(self.names)):
            self.errors.pop(f"{PREFIX}-{number}", None)

    def clean_json(self) -> dict[str, Any] | None:
        written = self.cleaned_data["json"]
        if self.data.get("mode") != "json":
            return None
        try:
            arguments = parse_json(written.encode(errors="replace"), given=True) if written.strip() else {}
        except UnreadableJSON as error:
            raise forms.ValidationError(f"The JSON cannot be read. {error}") from None
        if not isinstance(arguments, dict):
            raise forms.ValidationError('Enter a JSON object, such as {"text": "Hello"}.')
        return arguments

    def blame(self, path: str, message: str) -> None:
        name, *steps = steps_of(path) or ("",)
        if self.cleaned_data.get("mode") == "form" and name in self.names:
            inner = pointer_of(steps)[1:]
            self.add_error(f"{PREFIX}-{self.names.index(name)}", f"{inner}: {message}" if inner else message)
        else:
            self.add_error(None, f"{path}: {message}" if path else message)


def initial_values(workflow: Workflow, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the form's values, in JSON mode if an argument has no field."""
    schema = workflow.offered_input_schema
    inputs = inputs_at(Place(schema, schema))
    names = required_first(inputs.properties, inputs.required, schema)
    mode = "form" if names and arguments.keys() <= set(names) else "json"
    fields = {f"{PREFIX}-{number}": arguments.get(name) for number, name in enumerate(names)}
    return fields | {"mode": mode, "json": json.dumps(dict(arguments), indent=2, ensure_ascii=False)}


def field_for(name: str, inputs: Inputs) -> ArgumentField:
    described = inputs.properties[name]
    is_required = name in inputs.required
    left_out = ""
    if described.default is not None:
        left_out = f"Default: {json.dumps(described.default, ensure_ascii=False)[:SHORT]}."
    common: dict[str, Any] = {
        "about": f"{described.type}, required" if is_required else described.type,
        "help_text": " ".join(filter(None, (described.description, left_out))),
    }
    schema = _resolved(described)
    if values := _values(schema):
        return OneOfField(name, described.type, values=values, **common)
    if item := _item_type(described):
        common["help_text"] += " Enter one value per line."
        return ListField(name, item=item, widget=text_area(3), **common)
    if described.type in ("integer", "number"):
        step = "1" if described.type == "integer" else "any"
        return ArgumentField(name, described.type, widget=_line(type="number", step=step), **common)
    if described.type == "string":
        return _text_field(name, schema, common)
    if described.type != "any":
        takes_text = "string" in described.type.split(" or ")
        common["help_text"] += f" {TEXT_OR_JSON if takes_text else 'Enter JSON.'}"
    return ArgumentField(name, described.type, widget=text_area(3, **MONOSPACE), **common)


def _text_field(name: str, schema: Mapping[str, Any], common: dict[str, Any]) -> ArgumentField:
    if schema.get("format") == "date":
        return ArgumentField(name, "string", widget=_line(type="date"), **common)
    if schema.get("format") == "date-time":
        common["help_text"] += f" Time zone: {timezone.get_current_timezone_name()}."
        return MomentField(name, "string", widget=_line(type="datetime-local", step="1"), **common)
    longest = schema.get("maxLength")
    is_short = isinstance(longest, int) and longest <= SHORT
    has_one_line = is_short or "format" in schema or "pattern" in schema
    return ArgumentField(name, "string", widget=_line() if has_one_line else text_area(2), **common)


def _resolved(described: Input) -> dict[str, Any]:
    """The schema merged with its references; its own keywords win."""
    whole: dict[str, Any] = {}
    for schema in described.place.chain():
        whole = schema | whole
    return whole


def _values(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_CHOICES:
        return values
    if "const" in schema:
        return [schema["const"]]
    return [True, False] if schema.get("type") == "boolean" else []


def _item_type(described: Input) -> str:
    """The scalar type of an array's items, or ""."""
    items = _resolved(described).get("items")
    if described.type != "array" or not isinstance(items, dict):
        return ""
    kind = next((one.get("type") for one in described.place.at(items).chain() if "type" in one), "")
    return str(kind) if isinstance(kind, str) and kind in SCALARS else ""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(**attrs: str) -> forms.Widget:
    # The schema refuses a number, not the browser.
    widget: forms.TextInput = widgets.UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", **attrs})
    widget.input_type = attrs.get("type", "text")
    return widget


MAY_RUN = "executions.add_execution"
RUN = "admin:executions_run"
SHOWN_RUNS = 10


class RunningMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self._run)
        return [path("run/<int:key>/", view, name="executions_run"), *super().get_urls()]

    def _run(self, request: HttpRequest, key: int) -> HttpResponse:
        if not request.user.has_perm(MAY_RUN) or not _may_see(request):
            raise PermissionDenied
        workflow = get_object_or_404(Workflow.objects.select_related("source"), pk=key)
        if request.method != "POST":
            initial = initial_values(workflow, _arguments_of(request, workflow))
            return self._show(request, workflow, RunForm(workflow, initial=initial | {"key": uuid.uuid4()}))
        form = RunForm(workflow, request.POST)
        if (mode := request.POST.get("to")) in ("form", "json"):
            return self._show(request, workflow, _in_other_mode(workflow, form, mode))
        if form.is_valid() and form.is_destructive and not form.cleaned_data.get("sure"):
            form.add_error(
                "sure", "The workflow may delete or overwrite data. Confirm that you want to run it."
            )
        if form.is_valid() and (execution := _start(request, workflow, form)) is not None:
            if self.has_view_permission(request):
                return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))
            self.message_user(request, f"Started as execution {execution.pk}.")
            return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[workflow.pk]))
        return self._show(request, workflow, form)

    def _show(self, request: HttpRequest, workflow: Workflow, form: RunForm) -> HttpResponse:
        mode = str(form["mode"].value())
        context = self.admin_site.each_context(request) | {
            "title": f"Run {workflow.tool_name}",
            "workflow": workflow,
            "form": form,
            "is_json": mode == "json",
            "page": link_if_allowed(request, workflow.tool_name, "catalogue_workflow_change", workflow.pk),
        }
        return TemplateResponse(request, "executions/admin/run.html", context)


def _may_see(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"catalogue.{verb}_workflow") for verb in ("view", "change"))


def _arguments_of(request: HttpRequest, workflow: Workflow) -> dict[str, Any]:
    if not request.GET.get("again"):
        return {}
    if not request.user.has_perm("executions.view_execution"):
        raise PermissionDenied
    try:
        key = uuid.UUID(request.GET["again"])
    except ValueError:
        raise Http404 from None
    payload = ExecutionPayload.objects.filter(pk=key, execution__workflow=workflow).first()
    if payload is None or not isinstance(payload.input, dict):
        messages.warning(request, "The arguments of that run have been removed.")
        return {}
    constants = constants_of(workflow.argument_overrides)
    return {name: value for name, value in payload.input.items() if name not in constants}


def _in_other_mode(workflow: Workflow, form: RunForm, mode: str) -> RunForm:
    """Returns a form with the values so far; the same form if they cannot be converted."""
    if not form.is_valid():
        return form
    initial = initial_values(workflow, form.arguments)
    if mode == "form" and initial["mode"] != "form":
        unknown = ", ".join(form.arguments.keys() - set(form.names))
        form.add_error("json", f"The form has no field for {unknown or 'any argument'}.")
        return form
    kept = {name: form.cleaned_data[name] for name in ("key", "fresh", "sure") if name in form.cleaned_data}
    return RunForm(workflow, initial=initial | kept | {"mode": mode})


def _start(
    request: HttpRequest, workflow: Workflow, form: RunForm, key: uuid.UUID | None = None
) -> Execution | None:
    """None if refused; the form then has the reason."""
    wanted = StartRequest(
        tool_name=workflow.tool_name,
        arguments=form.arguments,
        caller=caller_of(request),
        door=Execution.Door.ADMIN,
        idempotency_key=f"form-{key or form.cleaned_data['key']}",
        fresh=form.cleaned_data.get("fresh", False),
        may_be_hidden=request.user.has_perm("catalogue.change_workflow"),
    )
    try:
        execution = create_execution(wanted)
    except InvalidArguments as error:
        for problem in error.problems:
            form.blame(problem.path, problem.message)
        return None
    except IdempotencyConflict:
        # The browser went back to a submitted form with other arguments.
        return _start(request, workflow, form, uuid.uuid4())
    except StartRefused as error:
        form.add_error(None, str(error))
        return None
    if not execution.is_settled:
        request_poll()
    return execution


def run_again(request: HttpRequest, execution: Execution) -> list[Link]:
    if execution.workflow_id is None or not request.user.has_perm(MAY_RUN) or not _may_see(request):
        return []
    address = f"{reverse(RUN, args=[execution.workflow_id])}?again={execution.pk}"
    return [Link(label="Run again", icon="replay", address=address)]


def link_to_run(request: HttpRequest, workflow: Workflow) -> list[Link]:
    run = Link(label="Run", icon="play_circle", address=reverse(RUN, args=[workflow.pk]))
    return [run] if request.user.has_perm(MAY_RUN) else []


def recent_runs(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    if not request.user.has_perm("executions.view_execution"):
        return ("Recent runs", "")
    runs = list(workflow.executions.order_by("-created_at", "-id")[:SHOWN_RUNS])
    rows = [
        [
            link(ago(run.created_at), "executions_execution_change", run.pk),
            state_badge(run),
            duration(run.duration_ms),
            side_by_side([run.caller_name or run.caller, f"by {run.get_door_display()}"]),
            "" if run.progress_percent is None else f"{run.progress_percent:g} %",
        ]
        for run in runs
    ]
    return ("Recent runs", table(("Began", "State", "Took", "Caller", "Progress"), rows) if rows else DASH)
