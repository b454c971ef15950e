"""The contract for HTTP APIs whose calls are declared as tools, with a key, a user name and OAuth."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from connectors.http_tools.tool import ToolConfig
from connectors.protocol import Connector
from connectors.testing import BROKEN_OFF, GARBAGE, ConnectorContract, EngineHarness, Sample
from tests.connectors.declared_tools import TEXT, connector_of, tool, workflow_of
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_answers import CLIENT_ID, CLIENT_SECRET
from tests.engines.target_api import TargetApi, running_target_api

KEY = "api-key-0123456789abcdef"
WRONG = "wrong-secret-fedcba9876543210"
BASIC = "SsO8cmdlbjphcGkta2V5LTAxMjM0NTY3ODlhYmNkZWY="


class HttpHarness(EngineHarness):
    """A key in a header."""

    failure = "There is no order 404."
    authentication: dict[str, Any] = {"type": "api_key", "in": "header", "name": "X-Key", "key": KEY}
    wrong: dict[str, str] = {"api_key": WRONG}
    required: dict[str, Any] = {"required_headers": {"x-key": KEY}}
    # Whatever else an API answers is the result of the call.
    garbage = {BROKEN_OFF: GARBAGE[BROKEN_OFF]}

    def __init__(self, api: TargetApi) -> None:
        self.api = api
        self.order = self._tool("POST", "/orders", idempotency_header="Idempotency-Key")
        show = self._tool("GET", "/orders/{order_id}", {"order_id": TEXT})
        self.completing = Sample(workflow_of(self.order), {"note": "Two of them."})
        self.failing = Sample(workflow_of(show), {"order_id": "404"})
        self.lasting = Sample(workflow_of(self._tool("GET", "/slow", {})), {})
        self.secrets = frozenset({KEY, WRONG, CLIENT_SECRET, BASIC, "access-token-1-0123456789abcdef"})

    def connector(self) -> Connector:
        return connector_of(self.order)

    def connector_with_wrong_credentials(self) -> Connector:
        return connector_of(self.order, **self.wrong)

    def connector_at(self, port: int) -> Connector:
        return connector_of(self.order, base_url=f"http://127.0.0.1:{port}")

    def runs_started_with(self, key: UUID) -> int:
        return sum(order["key"] == str(key) for order in self.api.kept["orders"].values())

    async def lasting_has_begun(self, told: asyncio.Event) -> None:
        assert await asyncio.to_thread(self.api.holding.wait, 5)

    def starts_broken_off(self) -> int:
        return self.api.broken_off

    def _tool(
        self, method: str, path: str, properties: dict[str, Any] | None = None, **api: Any
    ) -> ToolConfig:
        properties = {"note": TEXT} if properties is None else properties
        endpoint = f"{self.api.base_url}{path}"
        return tool(
            method, endpoint, properties, required=[*properties], authentication=self.authentication, **api
        )


class QueryHarness(HttpHarness):
    """A key in the query."""

    authentication = {"type": "api_key", "in": "query", "name": "key", "key": KEY}
    required = {"required_query": {"key": KEY}}


class BasicHarness(HttpHarness):
    """A user name and a password with characters beyond ASCII."""

    authentication = {"type": "basic", "username": "Jürgen", "password": KEY}
    wrong = {"password": WRONG}
    required = {"required_headers": {"authorization": f"Basic {BASIC}"}}


class BearerHarness(HttpHarness):
    """A token that was given."""

    authentication = {"type": "bearer", "token": KEY}
    wrong = {"token": WRONG}
    required = {"required_headers": {"authorization": f"Bearer {KEY}"}}


class OAuthHarness(HttpHarness):
    """A token that is got with client credentials."""

    wrong = {"oauth_client_secret": WRONG}
    required = {"required_headers": {"authorization": "Bearer none was given out so far"}}

    def __init__(self, api: TargetApi) -> None:
        self.authentication = {
            "type": "oauth_client_credentials",
            "token_url": f"{api.base_url}/oauth/token",
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        }
        super().__init__(api)


class TestHttpApi(ConnectorContract):
    @pytest.fixture(params=[HttpHarness, QueryHarness, BasicHarness, BearerHarness, OAuthHarness])
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        with running_target_api(**request.param.required) as api, http_tool_hosts("127.0.0.1"):
            yield request.param(api)
