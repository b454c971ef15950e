"""Every method and built-in tool of the MCP server, called by everyone: people by a token of theirs that was
given all scopes, which allows no more than they may."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from catalogue.access import Scope
from config.monitoring import ROUTES
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.models import AccessToken
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import create_token
from tests import access_matrix, plain_http
from tests.access_matrix import COLUMNS, NO, YES
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.test_endpoint import modern

SENT: dict[str, dict[str, Any]] = {
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "workflow://metadata/{name}"},
        "argument": {"name": "name", "value": ""},
    },
    "prompts/get": {"name": "report", "arguments": {}},
    "resources/read": {"uri": "workflow://list"},
}
TASKS = {"io.modelcontextprotocol/tasks": {}}
OF_THE_OTHER_ERA = {"logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
STREAMS = {"subscriptions/listen"}
LISTS = {"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources"}


@pytest.fixture
def texts() -> dict[str, str]:
    """The bearer texts by column; "" for the anonymous caller."""
    found = {"anonymous": "", **access_matrix.make_tokens()}
    for column, user in access_matrix.make_people().items():
        token, found[column] = create_token(name=f"of {column}", scopes=list(Scope))
        AccessToken.objects.filter(pk=token.pk).update(created_by=user)
    return found


@pytest.mark.databases("mcp_bridge.tokens")
def test_every_method_answers_each_caller_as_the_table_says(mcp_server, texts):
    make_execution(make_workflow(name="report", offered_as_prompt=True))
    methods = set(CatalogueServer()._request_handlers) - {"tools/call"} - OF_THE_OTHER_ERA - STREAMS
    assert User.objects.count() == len(access_matrix.PEOPLE) - 1

    def call(endpoint: str, verb: str, caller: str) -> str:
        method, params = endpoint, SENT.get(endpoint, {})
        if endpoint in BUILT_IN_TOOLS:
            method, params = "tools/call", {"name": endpoint, "arguments": {}}
        if method.startswith("tasks/"):
            params = {"taskId": "none"}
        body, headers = modern(method, **params)
        if method.startswith("tasks/"):
            headers |= {"mcp-name": "none"}
            body["params"]["_meta"] = with_tasks(body["params"]["_meta"])  # type: ignore[index]
        if method == "resources/read":
            headers |= {"mcp-name": params["uri"]}
        response = mcp_server.post(body, token=texts[caller], headers=headers)
        assert response.status_code < 500, response.text
        if response.status_code in (401, 403) or "lacks the scope" in response.text:
            return NO
        if method in LISTS:
            return YES if response.json()["result"][LISTS[method]] else NO
        return YES

    endpoints = [
        *((method, "method") for method in sorted(methods)),
        *((name, "tool") for name in BUILT_IN_TOOLS),
    ]
    access_matrix.check("MCP", access_matrix.observe(endpoints, COLUMNS, call))


def test_every_probe_answers_each_caller_as_the_table_says(mcp_server, texts):
    def call(endpoint: str, verb: str, caller: str) -> str:
        bearer = {"authorization": f"Bearer {texts[caller]}"} if texts[caller] else {}
        answer = plain_http.get(f"{mcp_server.base_url}{endpoint}", headers=bearer, timeout=20)
        return NO if answer.status_code in (401, 403) else YES

    endpoints = [(route.path, "GET") for route in ROUTES]
    access_matrix.check("monitoring", access_matrix.observe(endpoints, COLUMNS, call))


def with_tasks(meta: Any) -> Any:
    name = "io.modelcontextprotocol/clientCapabilities"
    return meta | {name: meta[name] | {"extensions": TASKS}}
