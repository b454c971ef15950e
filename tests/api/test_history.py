"""What REST changes is kept in the history that the admin shows."""

import pytest
from django.utils import timezone

from catalogue.actions.workflows import disable_workflows, enable_workflows
from catalogue.history import command
from catalogue.models import HistoryEntry, Review, ServerFeature, Source, Toolset, Workflow
from catalogue.rest.views import ApiViewSet
from config.urls import api
from identity.tokens import create_token, rotate_token
from tests.api.clients import administrator, staff_session
from tests.factories import (
    make_discovery_run,
    make_feature,
    make_filter,
    make_source,
    make_toolset,
    make_workflow,
)
from tests.tables import table_row

pytestmark = pytest.mark.django_db

TOOL = {
    "name": "get_order",
    "description": "Reads one order.",
    "api": {"endpoint": "https://api.example.com/orders/{order_id}", "method": "GET"},
    "input_schema": {
        "type": "object",
        "properties": {"order_id": {"type": "string"}},
        "required": ["order_id"],
    },
}
TEMPORAL = (
    "temporal: {hostPort: '127.0.0.1:9', timeout: 1s}\nworkflows: {A: {purpose: Does A., taskQueue: q}}"
)
OPENAPI = (
    '{"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, '
    '"servers": [{"url": "https://shop.example.com"}], "paths": {"/orders": {"get": '
    '{"operationId": "list_orders", "summary": "Lists orders.", "responses": {"200": {"description": ""}}}}}}'
)
WORKFLOW, SOURCE, TOOLSET = "/api/workflows/report/", "/api/sources/orders/", "/api/toolsets/finance/"
MANY = {"source": "orders", "all": True}
OFFERED = {"name": "greet", "title": "Greet"}
OFFER = ServerFeature(offered=OFFERED).offer_hash
WRITES = {
    "source.create": (
        "post",
        "/api/sources/",
        {"name": "new", "kind": "simplified", "config": {"base_url": "http://e"}},
    ),
    "source.partial_update": ("patch", SOURCE, {"max_concurrent": 2}),
    "source.refresh": ("post", f"{SOURCE}refresh/", {}),
    "source.destroy": ("delete", SOURCE, {}),
    "workflow.partial_update": ("patch", WORKFLOW, {"title": "Report", "tags": ["finance"]}),
    "workflow.disable": ("post", f"{WORKFLOW}disable/", {}),
    "workflow.enable": ("post", "/api/workflows/off/enable/", {}),
    "workflow.disable_many": ("post", "/api/workflows/disable/", MANY),
    "workflow.enable_many": ("post", "/api/workflows/enable/", MANY),
    "workflow.remove_missing": ("post", "/api/workflows/remove-missing/", MANY),
    "review.accept": ("post", "/api/reviews/report/accept/", {"offer": "f"}),
    "review.keep": ("post", "/api/reviews/report/keep/", {"offer": "f"}),
    "review.accept_many": ("post", "/api/reviews/accept/", {"offers": {"report": "f"}}),
    "review.keep_many": ("post", "/api/reviews/keep/", {"offers": {"report": "f"}}),
    "discovery-run.confirm": ("post", "/api/discovery-runs/{run}/confirm/", {}),
    "server-feature.partial_update": ("patch", "/api/server-features/{feature}/", {"enabled": False}),
    "server-feature.accept": ("post", "/api/server-features/{feature}/accept/", {"offer": OFFER}),
    "filter.create": ("post", "/api/filters/", {"pattern": "*"}),
    "filter.partial_update": ("patch", "/api/filters/{filter}/", {"note": "All."}),
    "filter.destroy": ("delete", "/api/filters/{filter}/", {}),
    "toolset.create": ("post", "/api/toolsets/", {"slug": "new"}),
    "toolset.partial_update": ("patch", TOOLSET, {"mode": "compact"}),
    "toolset.destroy": ("delete", TOOLSET, {}),
    "tool.create": ("post", "/api/tools/", TOOL),
    "tool.update": ("put", "/api/tools/get_order/", TOOL | {"description": "Reads an order."}),
    "tool.destroy": ("delete", "/api/tools/get_order/", {}),
    "temporal-import.create": ("post", "/api/temporal-imports/", {"file": TEMPORAL}),
    "openapi-import.create": ("post", "/api/openapi-imports/", {"document": OPENAPI}),
    "history.revert": ("post", "/api/history/{entry}/revert/", {}),
    "result-cache.clear": ("post", "/api/result-cache/clear/", {}),
    "token.create": ("post", "/api/tokens/", {"name": "new", "purpose": "Answers customers."}),
    "token.partial_update": ("patch", "/api/tokens/{token}/", {"purpose": "Other."}),
    "token.rotate": ("post", "/api/tokens/{token}/rotate/", {"overlap_hours": 1}),
    "token.end_former_secret": ("post", "/api/tokens/{token}/end-former-secret/", {}),
    "token.revoke": ("post", "/api/tokens/{token}/revoke/", {}),
    "catalogue.import_file": (
        "post",
        "/api/catalogue/import/",
        {"file": "version: 1\ntoolsets: {new: {}}\n"},
    ),
}
RECORDED_ELSEWHERE = {
    "execution.create", "execution.cancel", "execution.resolve", "execution.query", "execution.signal",
    "execution.answer", "execution.control",
    "approval.approve", "approval.refuse", "approval.change_arguments", "standing-approval.revoke",
}  # fmt: skip
"""Executions have a timeline of their own that tells who did what, approvals rows of who decided what."""
READING = {
    "list", "retrieve", "check", "preflight", "html", "source.check", "connector.check", "export", "chain",
    "result",
}  # fmt: skip


def writing_actions() -> set[str]:
    return {
        f"{name}.{action}"
        for prefix, view, name in api.registry
        if issubclass(view, ApiViewSet)
        for action in getattr(view, "access", {})
        if action not in READING
    }


def test_every_action_of_the_api_that_changes_something_is_known_here():
    """B8: a new one has to say where its trace is."""
    assert writing_actions() == {*WRITES, *RECORDED_ELSEWHERE}


@pytest.mark.parametrize("as_token", [True, False], ids=["token", "session"])
def test_each_change_leaves_who_made_it(as_token, subtests):
    """B8: a token by its name, a person by theirs."""
    source = make_source("orders")
    report = make_workflow(source, tool_name="report")
    off = Workflow.objects.filter(pk=make_workflow(source, tool_name="off", enabled=False).pk)
    Review.objects.create(workflow=report, kind="changed", offer_hash="f", offered={"description": "Other."})
    make_toolset("finance")
    enable_workflows(off, by=command("enable_workflows"))
    known = {"entry": HistoryEntry.objects.latest("pk").pk, "filter": make_filter("*").pk}
    disable_workflows(off)
    known |= {"run": make_discovery_run(source, outcome="held").pk}
    known |= {"feature": make_feature(source, "greet", offered=OFFERED).pk}
    token, _ = create_token(name="agent of billing")
    operator = administrator()
    if as_token:
        client, actor, name = operator, f"token:{operator.token.pk}", operator.token.name
    else:
        client = staff_session(
            *(f"{verb}_{model}" for verb in ("add", "change", "delete", "view") for model in MODELS),
            "assign_accesstoken",
        )
        actor, name = f"user:{client.session['_auth_user_id']}", "curator"
    for action, (method, path, body) in WRITES.items():
        with table_row(subtests, action):
            if action in ("tool.update", "tool.destroy"):
                operator.post("/api/tools/", TOOL, format="json")
            if action == "workflow.remove_missing":
                make_workflow(source, missing_since=timezone.now())
            if action == "history.revert":
                enable_workflows(off)
            if action == "token.end_former_secret":
                rotate_token(token, overlap_hours=1, by=command("rotate_mcp_token"))
            earlier = list(HistoryEntry.objects.values_list("pk", flat=True))
            response = getattr(client, method)(path.format(token=token.pk, **known), body, format="json")
            assert response.status_code < 300, response.content
            entries = HistoryEntry.objects.exclude(pk__in=earlier)
            assert {(entry.actor, entry.door) for entry in entries} == {(actor, "rest")}
            assert all(entry.actor_name.startswith(name) for entry in entries)


MODELS = (
    "serverfeature", "source", "workflow", "workflowfilter", "toolset", "cachedresult", "historyentry",
    "accesstoken", "execution", "workflowrequest",
)  # fmt: skip


def test_the_history_names_what_was_changed():
    """B8: fields as REST calls them."""
    workflow = make_workflow(tool_name="report")
    client = administrator()
    client.patch(WORKFLOW, {"title": "Report", "tags": ["finance"]}, format="json")
    assert HistoryEntry.of(workflow).get().message == "Changed tags, title."


def test_what_is_refused_leaves_no_trace():
    """B8."""
    make_workflow(tool_name="report")
    toolset = make_toolset("finance")
    client = administrator()
    assert client.patch(WORKFLOW, {"tool_name": "list_workflows"}, format="json").status_code == 400
    assert client.patch(TOOLSET, {"picked": ["nothing"]}, format="json").status_code == 400
    dry_run = {"document": OPENAPI, "dry_run": True}
    assert client.post("/api/openapi-imports/", dry_run, format="json").status_code == 200
    assert not HistoryEntry.objects.exists()
    assert (Workflow.objects.count(), Toolset.objects.get(), Source.objects.count()) == (1, toolset, 1)
