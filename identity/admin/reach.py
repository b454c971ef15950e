"""Who can call what today: by tool or by caller, also as CSV."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from catalogue.exposure import ExposedCatalogue, confirmed_catalogue
from catalogue.history import actor_of
from catalogue.models import Workflow
from catalogue.tables import send_rows
from identity.models import AccessToken
from identity.reach import MAX_HOLDERS, Holder, Place, Reach, find_holders

PAGE = "admin:mcp_bridge_accesstoken_reach"
NEEDED = ("catalogue.view_workflow", "catalogue.view_toolset", "mcp_bridge.view_accesstoken")
ROWS, SHOWN = 50, 5
TOOL, CALLER = "tool", "caller"
MAX_CHOSEN = 200  # Characters


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRow:
    workflow: Workflow
    toolsets: list[str]
    reserved_for: list[str]
    callers: list[tuple[list[Place], list[Holder]]]

    @property
    def count(self) -> int:
        return sum(len(holders) for _, holders in self.callers)

    @property
    def first(self) -> list[Holder]:
        return [one for _, holders in self.callers for one in holders[:SHOWN]][:SHOWN]

    @property
    def more(self) -> int:
        return self.count - len(self.first)


def may_look(user: Any) -> bool:
    return bool(user.has_perms(NEEDED))


def show_reach(request: HttpRequest) -> HttpResponseBase:
    if not may_look(request.user):
        raise PermissionDenied
    catalogue = confirmed_catalogue()
    chosen = {name: request.GET.get(name, "")[:MAX_CHOSEN] for name in ("q", "caller", "tool")}
    chosen["by"] = CALLER if request.GET.get("by") == CALLER else TOOL
    sees_applications = request.user.has_perm("mcp_bridge.view_allowedapplication")
    reach = Reach(catalogue, find_holders(with_applications=sees_applications))
    by_key = {holder.key: holder for holder in reach.holders}
    caller, tool = by_key.get(chosen["caller"]), catalogue.workflows.get(chosen["tool"])
    seen: Any = catalogue.workflows if caller is None else reach.tools_of(caller)
    words = chosen["q"].casefold().split()
    workflows = [
        seen[name]
        for name in seen
        if all(word in f"{name} {seen[name].title} {seen[name].source.name}".casefold() for word in words)
    ]
    if "csv" in request.GET:
        rows = _lines(_rows(catalogue, reach, workflows), caller)
        return send_rows(COLUMNS, rows, name="who can call what", by=actor_of(request), filters=chosen)
    by_tool = chosen["by"] == TOOL
    found: list[Any] = workflows if by_tool else _chosen_holders(reach, chosen["q"], tool)
    page = Paginator(found, ROWS).get_page(request.GET.get("page"))
    context = admin.site.each_context(request) | {
        "title": _("Who can call what today"),
        "opts": AccessToken._meta,
        "chosen": chosen,
        "caller": caller if by_tool else None,
        "tool": None if by_tool else tool,
        "rows": list(_rows(catalogue, reach, page)) if by_tool else list(_caller_rows(reach, page)),
        "by_tool": by_tool,
        "total": len(found),
        "page": page,
        "pages": [
            (f"?{urlencode(chosen | {'page': number})}", str(number), number == page.number)
            for number in page.paginator.get_elided_page_range(page.number)
            if isinstance(number, int) and page.paginator.num_pages > 1
        ],
        "tabs": [
            (f"?{urlencode({'by': by})}", label, chosen["by"] == by)
            for by, label in ((TOOL, _("By tool")), (CALLER, _("By caller")))
        ],
        "csv": f"?{urlencode(chosen | {'csv': 1})}",
        "is_cut": len(reach.holders) >= MAX_HOLDERS,
        "sees_applications": sees_applications,
    }
    return TemplateResponse(request, "identity/admin/reach.html", context)


def _chosen_holders(reach: Reach, text: str, tool: Workflow | None) -> list[Holder]:
    holders = reach.holders
    if tool is not None:
        holders = [one for _, alike in reach.callers_of(tool) for one in alike]
    words = text.casefold().split()
    found = (one for one in holders if all(word in f"{one.name} {one.user}".casefold() for word in words))
    return sorted(found, key=lambda one: (one.name.casefold(), one.key))


def _rows(catalogue: ExposedCatalogue, reach: Reach, workflows: Iterable[Workflow]) -> Iterator[ToolRow]:
    entries = list(catalogue.toolsets.values())
    for workflow in workflows:
        showing = [one.toolset for one in entries if workflow.tool_name in one.workflows]
        reserved = {name for toolset in showing for name in toolset.reserved_for}
        yield ToolRow(
            workflow=workflow,
            toolsets=[toolset.slug for toolset in showing],
            reserved_for=sorted(reserved.union(workflow.source.reserved_for)),
            callers=reach.callers_of(workflow),
        )


def _caller_rows(reach: Reach, holders: Iterable[Holder]) -> Iterator[dict[str, Any]]:
    for holder in holders:
        seen, tools = reach.seen_by(holder), reach.tools_of(holder)
        yield {
            "holder": holder,
            "view": f"mcp_bridge_{holder.kind}_change",
            "places": [f"/mcp/{place}" if place else "/mcp" for place in list(seen)[:SHOWN]],
            "more_places": max(0, len(seen) - SHOWN),
            "count": len(tools),
            "first": list(tools)[:SHOWN],
            "address": f"?{urlencode({'by': TOOL, 'caller': holder.key})}",
        }


COLUMNS = (
    "tool_name", "title", "source", "only_in_toolsets", "toolsets", "reserved_for", "tokens", "applications",
)  # fmt: skip


def _lines(rows: Iterable[ToolRow], caller: Holder | None) -> Iterator[list[Any]]:
    for row in rows:
        holders = [one for _, alike in row.callers for one in alike if caller in (None, one)]
        workflow = row.workflow
        yield [
            *(workflow.tool_name, workflow.title, workflow.source.name, workflow.only_in_toolsets),
            *(row.toolsets, row.reserved_for),
            [one.name for one in holders if one.kind == "accesstoken"],
            [f"{one.name} for {one.user}" for one in holders if one.kind == "allowedapplication"],
        ]


def address_for(**chosen: str) -> str:
    return f"{reverse(PAGE)}?{urlencode(chosen)}"


def callers_fact(request: HttpRequest, workflow: Workflow) -> tuple[str, str]:
    """Adds to the page of a workflow how many can call it."""
    catalogue = confirmed_catalogue()
    if not may_look(request.user) or workflow.tool_name not in catalogue.workflows:
        return (_("Reached by"), "")
    sees_applications = request.user.has_perm("mcp_bridge.view_allowedapplication")
    reach = Reach(catalogue, find_holders(with_applications=sees_applications))
    kinds = Counter(one.kind for _, holders in reach.callers_of(workflow) for one in holders)
    number = kinds["accesstoken"]
    told = [ngettext("%s token", "%s tokens", number) % f"{number:,}"]
    if sees_applications:
        number = kinds["allowedapplication"]
        told.append(ngettext("%s application", "%s applications", number) % f"{number:,}")
    return (_("Reached by"), ", ".join(told))
