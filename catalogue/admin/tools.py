from typing import Any, get_args

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from unfold import widgets
from unfold.decorators import action

from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.admin.form_fields import (
    MONOSPACE,
    CommasField,
    JsonValueField,
    MultilineField,
    switch,
    text_field,
)
from catalogue.admin.marks import marked, show_mark
from catalogue.history import actor_of
from catalogue.http_tools import KIND, tool_config_of
from catalogue.imports.pipeline import ToolsRefused
from catalogue.imports.tools import read_tool, remove_tool, replace_tool, store_tools
from catalogue.models import Source, Workflow
from connectors.definitions import MAX_SECONDS
from connectors.http_tools.tool import BodyFormat, Method, ToolConfig, ValidationProblem

NEEDED = "catalogue.change_source"
GROUPS = (
    ("What agents see", ("source", "name", "title", "description", "tags", "expose")),
    (
        "The call",
        ("method", "endpoint", "body_format", "idempotency_header", "anonymous", "response_headers"),
    ),
    ("Input", ("input_schema", "input_mappings", "constants")),
    (
        "Output",
        ("output_mappings", "output_schema", "output_is_promised", "timeout_seconds", "cache_seconds"),
    ),
)
WIDE = {"description", "endpoint", "input_schema"}
NO_ARGUMENTS = {"type": "object", "properties": {}}

PLACES = {  # In a ToolConfig, by the form's field
    "name": "/name", "title": "/title", "description": "/description", "tags": "/tags",
    "method": "/api/method", "endpoint": "/api/endpoint", "body_format": "/api/body_format",
    "idempotency_header": "/api/idempotency_header", "anonymous": "/api/anonymous",
    "input_schema": "/input_schema", "input_mappings": "/field_mappings/input",
    "constants": "/field_mappings/constants", "output_schema": "/output_schema",
    "output_is_promised": "/output_is_promised", "output_mappings": "/field_mappings/output",
    "response_headers": "/api/response_headers",
    "timeout_seconds": "/timeout_seconds", "cache_seconds": "/cache_seconds",
}  # fmt: skip


def _json(label: str, help_text: str, *, rows: int, example: str = "") -> JsonValueField:
    widget = widgets.UnfoldAdminTextareaWidget(attrs={**MONOSPACE, "rows": rows, "placeholder": example})
    return JsonValueField(label=label, help_text=help_text, required=False, widget=widget)


def _seconds(label: str, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        help_text=help_text,
        required=False,
        min_value=1,
        max_value=MAX_SECONDS,
        widget=widgets.UnfoldAdminIntegerFieldWidget,
    )


def _choice(label: str, help_text: str, choices: Any) -> forms.ChoiceField:
    first = choices[0][0] if choices else None
    return forms.ChoiceField(
        label=label,
        help_text=help_text,
        choices=choices,
        initial=first,
        widget=widgets.UnfoldAdminSelectWidget,
    )


class ToolForm(forms.Form):
    """`tool` is the resulting ToolConfig; faults appear at their fields."""

    source = _choice("API", "The tool uses the base URL and credentials of the source.", [])
    name = text_field("Name", "The name that agents call, unless another tool already has it.", required=True)
    title = text_field("Title", "Shown to people. Empty: the name.")
    description = MultilineField(
        label="Description",
        max_length=20_000,
        help_text="What it does, when to use it and what it returns. Agents choose tools by this.",
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 4}),
    )
    tags = CommasField(label="Tags", required=False, help_text="Separated by commas.")
    method = _choice("Method", "", [(method, method) for method in get_args(Method)])
    endpoint = text_field(
        "Endpoint",
        "The complete URL, with path arguments in braces: https://api.example.com/v1/orders/{order_id}",
        required=True,
        length=2_000,
    )
    body_format = _choice(
        "Body",
        "The format of the body, if there is one. raw: one argument, mapped to "
        '{"in": "body", "name": ""}, is the whole body, as text or a data: URI.',
        [(name, name) for name in get_args(BodyFormat)],
    )
    idempotency_header = text_field(
        "Idempotency header",
        "If the API executes requests with the same value in this header only once, such as Idempotency-Key.",
        length=100,
    )
    anonymous = switch(
        "Without credentials", "For an API that rejects this call if it has the source's credentials."
    )
    input_schema = _json(
        "Input schema",
        "JSON Schema of the arguments, of type object. Other arguments are refused.",
        rows=12,
        example='{\n  "type": "object",\n  "properties": {\n    "order_id": {"type": "string"}\n  },\n'
        '  "required": ["order_id"]\n}',
    )
    input_mappings = _json(
        "Argument mapping",
        "By default, arguments that the path does not name go into the query (GET, HEAD, DELETE) or "
        'the body. Only for others: {"customer": {"in": "header", "name": "X-Customer"}}. "in" is path, '
        "query, header, cookie or body; in a body, the name is a JSON Pointer.",
        rows=6,
        example='{\n  "amount": {"in": "body", "name": "/payment/amount"}\n}',
    )
    constants = _json(
        "Always sent",
        'A list: [{"in": "query", "name": "format", "value": "full"}]. Store credentials in the source.',
        rows=6,
        example='[\n  {"in": "header", "name": "Accept-Language", "value": "en"}\n]',
    )
    output_mappings = _json(
        "Output mapping",
        'Fields of the result, as JSON Pointers into the response: {"total": "/amount/total"}. '
        "Empty: the unchanged response.",
        rows=6,
        example='{\n  "state": "/state",\n  "total": "/amount/total"\n}',
    )
    output_schema = _json("Output schema", "JSON Schema of the result, if the API guarantees one.", rows=6)
    output_is_promised = switch(
        "Enforce the output schema",
        "Clients get the output schema, and a result that violates it is an error. Off: it only describes.",
        initial=True,
    )
    response_headers = CommasField(
        label="Response headers",
        required=False,
        help_text="That agents are told besides Location, Link, totals and the like: ETag. By commas.",
    )
    timeout_seconds = _seconds("Timeout (s)", "Empty: the product's default.")
    cache_seconds = _seconds(
        "Cache results for (s)",
        "Only for tools that change nothing and answer all callers alike. Empty: results are not cached.",
    )
    expose = switch(
        "Visible to agents immediately",
        "If the filters allow it. Off: a curator must enable it first, as with discovered workflows.",
    )

    def __init__(self, *args: Any, tool: ToolConfig | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tool: ToolConfig | None = None
        if tool is None:
            self.fields["source"].choices = [  # type: ignore[attr-defined]
                (source.name, f"{source.name}: {source.config.get('base_url')}") for source in http_sources()
            ]
            self.initial.setdefault("input_schema", NO_ARGUMENTS)
        else:
            del self.fields["source"], self.fields["expose"]
            # The name identifies the tool; the workflow's page can rename it for agents.
            self.fields["name"].disabled = True
            written = tool.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            for argument, place in tool.field_mappings.input.items():
                if not place.name:
                    # The whole body. Without a name it would be the field with the argument's name.
                    written["field_mappings"]["input"][argument]["name"] = ""
            values = {field: _at(place, written) for field, place in PLACES.items()}
            self.initial.update({field: value for field, value in values.items() if value is not None})

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                self.tool = read_tool(_written(cleaned))
            except ToolsRefused as refused:
                self.show(refused)
        return cleaned

    def show(self, refused: ToolsRefused) -> None:
        for fault in refused.problems:
            field, rest = self._field_of(fault)
            self.add_error(field, f"{rest}: {fault.message}" if rest else fault.message)

    def _field_of(self, fault: ValidationProblem) -> tuple[str | None, str]:
        """The field, and the place within its value."""
        if fault.position is None:
            return None, ""
        for field, place in PLACES.items():
            if field in self.fields and (fault.path + "/").startswith(place + "/"):
                return field, fault.path.removeprefix(place)
        return None, fault.path


def http_sources() -> list[Source]:
    return list(Source.objects.filter(kind="http").order_by("name"))


def _written(cleaned: dict[str, Any]) -> dict[str, Any]:
    """The ToolConfig as JSON; empty fields get their defaults."""
    written: dict[str, Any] = {}
    for field, place in PLACES.items():
        if (value := cleaned.get(field)) in (None, ""):
            continue
        *parents, last = place[1:].split("/")
        inner = written
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return written


def _at(place: str, written: Any) -> Any:
    for step in place[1:].split("/"):
        written = (written or {}).get(step)
    return written


class ToolPagesMixin(ButtonsMixin):
    actions_list = ("add_tool",)
    buttons = ("remove_tool",)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.edit_tool)
        return [path("<path:object_id>/tool/", view, name="catalogue_workflow_tool"), *super().get_urls()]

    def get_buttons(self, request: HttpRequest, obj: Workflow) -> list[Button]:
        is_removable = obj.source.kind == KIND and obj.missing_since is None and may_declare(request)
        return super().get_buttons(request, obj) if is_removable else []

    @action(  # type: ignore[untyped-decorator]
        description="Add tool", url_path="add-tool", icon="add_link", permissions=["add_tool"]
    )
    def add_tool(self, request: HttpRequest) -> HttpResponse:
        initial = {"source": request.GET.get("source", "")}
        if source := Source.objects.filter(name=initial["source"], kind=KIND).first():
            initial["endpoint"] = f"{source.config.get('base_url', '')}/"
        form = ToolForm(request.POST or None, initial=initial)
        if form.is_valid() and form.tool is not None:
            given = form.cleaned_data
            try:
                stored = store_tools(
                    [form.tool],
                    source=given["source"],
                    expose=given["expose"],
                    may_add_source=False,
                    by=actor_of(request),
                )
            except ToolsRefused as refused:
                form.show(refused)
            else:
                change = stored.tools[0]
                messages.success(request, f"{change.tool_id}: {change.change}. {change.note}".strip())
                return _to_workflow(Workflow.objects.get(tool_name=change.tool_id))
        return self._page(request, form, title="Add HTTP tool")

    def has_add_tool_permission(self, request: HttpRequest) -> bool:
        return may_declare(request)

    def edit_tool(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not may_declare(request):
            raise PermissionDenied
        with self.comparing(request, object_id):
            workflow = self.get_object(request, object_id)
            if workflow is None or workflow.source.kind != KIND or workflow.missing_since is not None:
                raise Http404
            form = marked(ToolForm, request)(request.POST or None, tool=tool_config_of(workflow))
            if form.is_valid() and form.tool is not None:
                try:
                    change = replace_tool(workflow, form.tool, by=actor_of(request)).tools[0].change
                except ToolsRefused as refused:
                    form.show(refused)
                else:
                    messages.success(request, f"{workflow.tool_name}: {change}.")
                    return _to_workflow(workflow)
            return self._page(request, form, title=f"Change {workflow.tool_name}", workflow=workflow)

    @button(
        "Remove tool",
        icon="delete",
        confirm="Remove this tool? Agents can no longer call it. Its executions are kept.",
    )
    def remove_tool(self, request: HttpRequest, workflow: Workflow) -> None:
        if not may_declare(request):
            raise PermissionDenied
        if workflow.source.kind != KIND:
            messages.error(
                request, f"{workflow.tool_name} is not declared in the catalogue; its engine lists it."
            )
            return
        remove_tool(workflow)
        messages.success(
            request, f"{workflow.tool_name} was removed. If you declare it again, it gets the same id."
        )

    def _page(
        self, request: HttpRequest, form: ToolForm, *, title: str, workflow: Workflow | None = None
    ) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": title,
            "form": form,
            "groups": [
                (label, [(form[name], name in WIDE) for name in names if name in form.fields])
                for label, names in GROUPS
            ],
            "workflow": workflow,
            **({} if workflow is None else show_mark(request, workflow, [form])),
            "has_sources": workflow is not None or bool(http_sources()),
            "add_source": f"{reverse('admin:catalogue_source_add')}?{urlencode({'kind': KIND})}",
        }
        return TemplateResponse(request, "catalogue/admin/tool.html", context)


def may_declare(request: HttpRequest) -> bool:
    return request.user.has_perm(NEEDED)


def tools_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if source.kind != KIND or not may_declare(request):
        return ("Tools", "")
    address = f"{reverse('admin:catalogue_workflow_add_tool')}?{urlencode({'source': source.name})}"
    return ("Tools", format_html('<a class="text-link" href="{}">Add tool</a>', address))


def declaration_fact(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    if workflow.source.kind != KIND or workflow.missing_since is not None or not may_declare(request):
        return ("Declared here", "")
    address = reverse("admin:catalogue_workflow_tool", args=[workflow.pk])
    return ("Declared here", format_html('<a class="text-link" href="{}">Change the tool</a>', address))


def _to_workflow(workflow: Workflow) -> HttpResponse:
    return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[workflow.pk]))
