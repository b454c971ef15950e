"""The contract for the declaration of n8n, against a real n8n 1.x of dev/scripts/install_n8n.sh."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from django.core.management import call_command

from connectors.errors import NotFound, OutcomeUnknown, Unsupported
from connectors.protocol import Connector, RunState, WorkflowRef
from connectors.testing import (
    ConnectorContract,
    EngineHarness,
    Sample,
    eventually,
    free_port,
    start,
    until_ended,
)
from tests import plain_http
from tests.connectors.contracts.test_http_job import WRONG, N8nHarness
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.job_engines import ASKING, N8n
from tests.processes import PROBE_SECONDS, guarded

FOLDER = os.environ.get("N8N_FOLDER", "")
STARTUP_SECONDS = 120.0
OWNER = {"email": "a@example.com", "firstName": "A", "lastName": "B", "password": "N8n-password-0123456789"}
REPLY = '={"executionId": "{{ $execution.id }}"}'
LAST_NODES = {
    "complete": ("set", 3.4, {"mode": "raw", "jsonOutput": '={"brewed": {{ JSON.stringify($json.body) }} }'}),
    "fail": ("stopAndError", 1, {"errorMessage": N8nHarness.failure}),
    "last": ("wait", 1.1, {"resume": "timeInterval", "amount": 600, "unit": "seconds"}),
    ASKING: ("wait", 1.1, N8n.waits),
    "hook": ("wait", 1.1, {"resume": "webhook", "httpMethod": "POST"}),
}

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FOLDER, reason="n8n takes minutes to install; dev/scripts/install_n8n.sh does it"),
]


class N8nServer:
    """Set up without a browser: an owner, an API key, and three workflows that begin with a webhook."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.token = ""
        self.ids: dict[str, str] = {}

    def set_up(self) -> None:
        with plain_http.Client(base_url=self.base_url, timeout=60) as http:
            http.post("/rest/owner/setup", json=OWNER).raise_for_status()
            scopes = http.get("/rest/api-keys/scopes").raise_for_status().json()["data"]
            wanted = {"label": "catalogue", "scopes": scopes, "expiresAt": None}
            self.token = (
                http.post("/rest/api-keys", json=wanted).raise_for_status().json()["data"]["rawApiKey"]
            )
        secret = {"name": "X-N8N-API-KEY", "value": self.token}
        login = self.ask("POST", "/credentials", {"name": "key", "type": "httpHeaderAuth", "data": secret})
        for job in LAST_NODES:
            made = self.ask("POST", "/workflows", _workflow(job, credential=login["id"]))
            self.ids[job] = made["id"]
            self.ask("POST", f"/workflows/{made['id']}/activate")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"X-N8N-API-KEY": self.token}
        address = f"{self.base_url}/api/v1{path}"
        answer = plain_http.request(method, address, json=body, headers=headers, timeout=60)
        assert answer.is_success, answer.text
        return answer.json()


def _workflow(job: str, *, credential: str) -> dict[str, Any]:
    kind, version, parameters = LAST_NODES[job]
    trigger = {
        "httpMethod": "POST",
        "path": job,
        "responseMode": "responseNode",
        "authentication": "headerAuth",
    }
    webhook = _node("Webhook", "webhook", 2, trigger, 0) | {
        "webhookId": job,
        "credentials": {"httpHeaderAuth": {"id": credential, "name": "key"}},
    }
    reply = _node("Reply", "respondToWebhook", 1.1, {"respondWith": "json", "responseBody": REPLY}, 1)
    nodes = [webhook, reply, _node("Brew", kind, version, parameters, 2)]
    following = {"Webhook": "Reply", "Reply": "Brew"}
    connections = {
        name: {"main": [[{"node": after, "type": "main", "index": 0}]]} for name, after in following.items()
    }
    return {"name": job, "nodes": nodes, "connections": connections, "settings": {}}


def _node(name: str, kind: str, version: float, parameters: Any, place: int) -> dict[str, Any]:
    at = {"id": name.lower(), "position": [200 * place, 0]}
    return at | {
        "name": name,
        "type": f"n8n-nodes-base.{kind}",
        "typeVersion": version,
        "parameters": parameters,
    }


@pytest.fixture(scope="module")
def n8n_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[N8nServer]:
    home, port = tmp_path_factory.mktemp("n8n"), free_port()
    off = (
        "DIAGNOSTICS",
        "VERSION_NOTIFICATIONS",
        "TEMPLATES",
        "PERSONALIZATION",
        "COMMUNITY_PACKAGES",
        "RUNNERS",
    )
    variables = {f"N8N_{name}_ENABLED": "false" for name in off} | {
        "N8N_USER_FOLDER": str(home),
        "N8N_PORT": str(port),
        "N8N_LISTEN_ADDRESS": "127.0.0.1",
        "N8N_SECURE_COOKIE": "false",
        # The other engine wants Node.js 22.
        "N8N_EXPRESSION_ENGINE": "legacy",
    }
    program = ("node", str(Path(FOLDER) / "node_modules" / "n8n" / "bin" / "n8n"), "start")
    server = N8nServer(port)
    with guarded(program, log=home / "n8n.log", environment=variables):
        deadline = time.monotonic() + STARTUP_SECONDS
        while not _is_ready(server):
            assert time.monotonic() < deadline, (home / "n8n.log").read_text()[-3000:]
            time.sleep(5 * PROBE_SECONDS)
        server.set_up()
        yield server


def _is_ready(server: N8nServer) -> bool:
    with suppress(httpx2.HTTPError):
        # n8n answers with a page that says so while it starts.
        answer = plain_http.get(f"{server.base_url}/rest/settings", timeout=10)
        return answer.is_success and "json" in answer.headers.get("content-type", "")
    return False


class RealN8n(N8nHarness):
    deadline_seconds = 60.0

    def __init__(self, server: N8nServer) -> None:
        self.server = server
        self.secrets = frozenset({server.token, WRONG})
        super().__init__(engine=None)  # type: ignore[arg-type] - the real one is asked instead

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=self.server.ids[job], name=job, metadata={"kept": {"webhook": job}})

    def connector(self) -> Connector:
        return self._connector(0, base_url=self.server.base_url, token=self.server.token)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(0, base_url=self.server.base_url, token=WRONG)

    def runs_started_with(self, key: UUID) -> int:
        raise NotImplementedError  # n8n knows no keys


class TestRealN8n(ConnectorContract):
    @pytest.fixture
    def harness(self, n8n_server: N8nServer) -> EngineHarness:
        return RealN8n(n8n_server)

    async def test_cancel_ends_a_run_or_is_unsupported(self, connector, harness):
        """A8.5: n8n 1.x has no public request for it, which shows at the first cancellation only."""
        _, run = await start(connector, harness.lasting)
        with pytest.raises(Unsupported):
            await connector.cancel(run)

    @pytest.mark.parametrize(
        ("job", "told", "became"),
        [
            (
                ASKING,
                {"field-0": "yes", "field-1": 3, "field-2": ["Mint"]},
                {"Good": "yes", "Cups": 3, "Sorts": ["Mint"]},
            ),
            ("hook", {"good": True, "why": {"cups": 3}}, {"body": {"good": True, "why": {"cups": 3}}}),
        ],
    )
    async def test_a_node_that_waits_takes_the_answer_once(self, connector, harness, job, told, became):
        """A8.2: of two at once, one is taken. n8n leaves the other form without a reply."""
        _, run = await start(connector, Sample(harness.workflow(job), {}))

        async def asked() -> Any:
            return (await connector.poll(run)).questions

        (question,) = await eventually(asked, seconds=harness.deadline_seconds)
        both = [connector.answer(run, question.id, told) for _ in range(2)]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert None in results and {type(one) for one in results} <= {type(None), NotFound, OutcomeUnknown}
        ended = await until_ended(connector, run, seconds=harness.deadline_seconds)
        assert ended.state is RunState.COMPLETED
        (item,) = ended.output
        assert became.items() <= item.items()


@pytest.mark.django_db(transaction=True)
def test_the_operations_of_its_own_document_that_tell_of_runs_answer(n8n_server, capsys):
    """A7.4, C1.4: the document says that ids are numbers, and n8n sends texts."""
    document = Path(FOLDER) / "node_modules" / "n8n" / "dist" / "public-api" / "v1" / "openapi.yml"
    started = plain_http.post(
        f"{n8n_server.base_url}/webhook/complete",
        headers={"X-N8N-API-KEY": n8n_server.token},
        json={},
        timeout=60,
    )
    key = started.raise_for_status().json()["executionId"]
    with http_tool_hosts("127.0.0.1"):
        call_command(
            "import_openapi",
            *(str(document), "--source", "n8n", "--base-url", f"{n8n_server.base_url}/api/v1", "--expose"),
            *("--secret", f"api_key={n8n_server.token}"),
            *("--only", "GET /executions", "GET /executions/{id}"),
        )
        capsys.readouterr()
        call_command("call_tool", "get_executions")
        listed = capsys.readouterr().out
        call_command("call_tool", "get_executions_id", json.dumps({"id": int(key)}))
        read = capsys.readouterr().out

    assert f'"id": "{key}"' in listed and f'"id": "{key}"' in read
