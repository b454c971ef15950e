from functools import cache
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold import widgets
from unfold.decorators import action

from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.admin.form_fields import CommasField, JsonValueField, MultilineField, setting_field, switch
from catalogue.admin.marks import marked, show_mark
from catalogue.admin.rendering import link
from catalogue.connections import Setting, read_settings
from catalogue.history import Actor, actor_of
from catalogue.http_tools import KIND, tool_config_of
from catalogue.imports.pipeline import ToolsRefused
from catalogue.imports.tools import ToolChange, read_tool, remove_tool, replace_tool, store_tools
from catalogue.models import Source, Workflow
from connectors.http_tools.tool import ApiConfig, FieldMappings, ToolConfig, ValidationProblem

NEEDED = "catalogue.change_source"
GROUPS = (
    (gettext_lazy("What agents see"), ("source", "name", "title", "description", "tags", "expose")),
    (
        gettext_lazy("The call"),
        ("method", "endpoint", "body_format", "idempotency_header", "anonymous", "response_headers"),
    ),
    (gettext_lazy("Input"), ("input_schema", "input_mappings", "constants")),
    (
        gettext_lazy("Output"),
        ("output_mappings", "output_schema", "output_is_promised", "timeout_seconds", "cache_seconds"),
    ),
)
WIDE = {"description", "endpoint", "input_schema"}
KINDS: dict[str, tuple[type[forms.Field], Any]] = {  # Fields other than for settings of a source, with a hint
    "description": (MultilineField, ""),
    "tags": (CommasField, gettext_lazy("Separated by commas.")),
    "response_headers": (CommasField, gettext_lazy("Separated by commas.")),
    "output_mappings": (JsonValueField, gettext_lazy("As JSON.")),
}

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


@cache
def tool_settings() -> dict[str, Setting]:
    """What the models of a declaration say of the form's fields."""
    models = {"": ToolConfig, "/api": ApiConfig, "/field_mappings": FieldMappings}
    found = {}
    for field, place in PLACES.items():
        part, _, name = place.rpartition("/")
        found[field] = read_settings(models[part])[name]
    return found


class ToolForm(forms.Form):
    """Declares a tool, or the given workflow anew; faults appear at their fields."""

    source = forms.ChoiceField(
        label="API",
        help_text=gettext_lazy("The tool uses the base URL and credentials of the source."),
        widget=widgets.UnfoldAdminSelectWidget,
    )
    expose = switch(
        gettext_lazy("Visible to agents immediately"),
        gettext_lazy(
            "If the exposure rules allow it. Off: a curator must enable it first, as with "
            "discovered workflows."
        ),
    )

    def __init__(self, *args: Any, workflow: Workflow | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.workflow, settings = workflow, tool_settings()
        for field, setting in settings.items():
            if field in KINDS:
                kind, hint = KINDS[field]
                label, told = _(setting.title), f"{_(setting.help)} {hint}".strip()
                self.fields[field] = kind(label=label, help_text=told, required=setting.required)
            else:
                self.fields[field] = setting_field(setting, settings)
        self.fields["input_schema"].widget.attrs["rows"] = 12
        if workflow is None:
            self.fields["source"].choices = [  # type: ignore[attr-defined]
                (source.name, f"{source.name}: {source.config.get('base_url')}") for source in http_sources()
            ]
            self.initial.setdefault("input_schema", settings["input_schema"].default)
            return
        del self.fields["source"], self.fields["expose"]
        # The name identifies the tool; the workflow's page can rename it for agents.
        self.fields["name"].disabled = True
        tool = tool_config_of(workflow)
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
            # The ToolConfig as JSON; empty fields get their defaults.
            written: dict[str, Any] = {}
            for field, place in PLACES.items():
                if (value := cleaned.get(field)) in (None, ""):
                    continue
                *parents, last = place[1:].split("/")
                inner = written
                for parent in parents:
                    inner = inner.setdefault(parent, {})
                inner[last] = value
            try:
                self.tool = read_tool(written)
            except ToolsRefused as refused:
                self.show(refused)
        return cleaned

    def save(self, *, by: Actor) -> ToolChange | None:
        """Stores the valid tool. Returns None if it is refused."""
        given = self.cleaned_data
        try:
            if self.workflow is not None:
                stored = replace_tool(self.workflow, self.tool, by=by)
            else:
                stored = store_tools(
                    [self.tool], source=given["source"], expose=given["expose"], may_add_source=False, by=by
                )
        except ToolsRefused as refused:
            self.show(refused)
            return None
        return stored.tools[0]

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
        description=gettext_lazy("Add tool"), url_path="add-tool", icon="add_link", permissions=["add_tool"]
    )
    def add_tool(self, request: HttpRequest) -> HttpResponse:
        initial = {"source": request.GET.get("source", "")}
        if source := Source.objects.filter(name=initial["source"], kind=KIND).first():
            initial["endpoint"] = f"{source.config.get('base_url', '')}/"
        form = ToolForm(request.POST or None, initial=initial)
        return self._answer(request, form, title=_("Add HTTP tool"))

    def has_add_tool_permission(self, request: HttpRequest) -> bool:
        return may_declare(request)

    def edit_tool(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not may_declare(request):
            raise PermissionDenied
        with self.detecting_conflicts(request, object_id):
            workflow = self.get_object(request, object_id)
            if workflow is None or workflow.source.kind != KIND or workflow.missing_since is not None:
                raise Http404
            form = marked(ToolForm, request)(request.POST or None, workflow=workflow)
            return self._answer(request, form, title=f"Change {workflow.tool_name}")

    @button(
        gettext_lazy("Remove tool"),
        icon="delete",
        confirm=gettext_lazy("Remove this tool? Agents can no longer call it. Its executions are kept."),
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

    def _answer(self, request: HttpRequest, form: ToolForm, *, title: str) -> HttpResponse:
        if form.is_valid() and (change := form.save(by=actor_of(request))):
            messages.success(request, f"{change.tool_id}: {change.change}. {change.note}".strip())
            stored = Workflow.objects.get(tool_name=change.tool_id)
            return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[stored.pk]))
        workflow = form.workflow
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
        return (_("Tools"), "")
    query = f"?{urlencode({'source': source.name})}"
    return (_("Tools"), link(_("Add tool"), "catalogue_workflow_add_tool", query=query))
