"""Declaring HTTP tools in the admin: add one, change it, remove it."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from unfold.decorators import action

from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.admin.tool_form import ToolForm, http_sources
from catalogue.history import actor_of
from catalogue.http_tools.configs import KIND, tool_config_of
from catalogue.http_tools.refusals import ToolsRefused
from catalogue.http_tools.registry import remove_tool, replace_tool, store_tools
from catalogue.models import Source, Workflow

NEEDED = "catalogue.change_source"
GROUPS = (
    ("What agents read", ("source", "name", "title", "description", "tags", "expose")),
    ("The call", ("method", "endpoint", "body_format", "idempotency_header", "anonymous")),
    ("What goes in", ("input_schema", "input_mappings", "constants")),
    (
        "What comes out",
        ("output_mappings", "output_schema", "output_is_promised", "timeout_seconds", "cache_seconds"),
    ),
)
WIDE = {"description", "endpoint", "input_schema"}


class ToolPagesMixin(ButtonsMixin):
    """The pages and the button, for the admin of workflows."""

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
        form = ToolForm(request.POST or None, initial=initial | _start_of_endpoint(initial["source"]))
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
                workflow = Workflow.objects.get(tool_name=change.tool_id)
                return _to_workflow(workflow)
        return self._page(request, form, title="Add HTTP tool")

    def has_add_tool_permission(self, request: HttpRequest) -> bool:
        return may_declare(request)

    def edit_tool(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not may_declare(request):
            raise PermissionDenied
        workflow = self.get_object(request, object_id)
        if workflow is None or workflow.source.kind != KIND or workflow.missing_since is not None:
            raise Http404
        form = ToolForm(request.POST or None, tool=tool_config_of(workflow))
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
        confirm="Remove this tool? Agents can no longer call it; what it ran stays on record.",
    )
    def remove_tool(self, request: HttpRequest, workflow: Workflow) -> None:
        if not may_declare(request):
            raise PermissionDenied
        if workflow.source.kind != KIND:
            messages.error(request, f"{workflow.tool_name} is not declared here; its engine lists it.")
            return
        remove_tool(workflow)
        messages.success(request, f"{workflow.tool_name} is removed. Declared again, it has its id back.")

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
            "has_sources": workflow is not None or bool(http_sources()),
            "add_source": f"{reverse('admin:catalogue_source_add')}?{urlencode({'kind': KIND})}",
        }
        return TemplateResponse(request, "catalogue/admin/tool.html", context)


def may_declare(request: HttpRequest) -> bool:
    return request.user.has_perm(NEEDED)


def tell_of_tools(request: HttpRequest, source: Source) -> tuple[str, Any]:
    """For the page of a source: the way to add a tool to it."""
    if source.kind != KIND or not may_declare(request):
        return ("Tools", "")
    address = f"{reverse('admin:catalogue_workflow_add_tool')}?{urlencode({'source': source.name})}"
    return ("Tools", format_html('<a class="text-link" href="{}">Add tool</a>', address))


def tell_of_declaration(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    """For the page of a workflow: the way to change what declares it."""
    if workflow.source.kind != KIND or workflow.missing_since is not None or not may_declare(request):
        return ("Declared here", "")
    address = reverse("admin:catalogue_workflow_tool", args=[workflow.pk])
    return ("Declared here", format_html('<a class="text-link" href="{}">Change the tool</a>', address))


def _start_of_endpoint(source: str) -> dict[str, str]:
    found = Source.objects.filter(name=source, kind=KIND).first()
    return {"endpoint": f"{found.config.get('base_url', '')}/"} if found else {}


def _to_workflow(workflow: Workflow) -> HttpResponse:
    return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[workflow.pk]))
