"""From a declared HTTP tool to an answer in words, with the whole product, a model server and an API."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from connectors.testing import free_port
from tests import plain_http
from tests.e2e.product import Product, Rest, place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026
from tests.engines.model_answers import KEY, MODEL, proposes
from tests.engines.model_server import ModelServer
from tests.engines.target_api import Reply, TargetApi, running_target_api
from tests.processes import running, web_command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

API_TOKEN = "shop-token-0123456789abcdef"
ORDER = {"item": "kettle", "amount": 2}
WANTED = "Order two kettles for me, please."


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer().running() as server:
        yield server


@pytest.fixture(scope="module")
def shop() -> Iterator[TargetApi]:
    with running_target_api(required_headers={"authorization": f"Bearer {API_TOKEN}"}) as api:
        yield api


@pytest.fixture(scope="module")
def product(
    model: ModelServer, shop: TargetApi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """One that asks this model, and may reach APIs of this machine."""
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        variables = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": MODEL,
            "CATALOGUE_HTTP_TOOL_HOSTS": "127.0.0.1",
        }
        with started(place | variables) as running_product:
            running_product.wait_until_up()
            yield running_product


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "curator", "--scope", "catalogue:admin"))


@pytest.fixture(scope="module")
def create_order(rest: Rest, shop: TargetApi) -> str:
    """The id under which `POST /tools` has stored the tool (C1.1)."""
    stored = rest.post(
        "/tools/",
        name="create_order",
        description="Orders something in the shop.",
        api={
            "endpoint": f"{shop.base_url}/orders",
            "method": "POST",
            "authentication": {"type": "bearer", "token": API_TOKEN},
        },
        input_schema={
            "type": "object",
            "properties": {"item": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
            "required": ["item", "amount"],
        },
        field_mappings={
            "input": {"amount": {"in": "body", "name": "/line/amount"}},
            "output": {"number": "/order/id"},
        },
    )
    (tool,) = stored["tools"]
    return str(tool["id"])


@pytest.fixture(autouse=True)
def _nothing_has_arrived(shop: TargetApi) -> None:
    shop.arrived.clear()


def say(url: str, token: str, **asked: Any) -> httpx2.Response:
    """`POST /workflow` as a front end sends it."""
    headers = {"Authorization": f"Bearer {token}"}
    return plain_http.post(f"{url}/workflow", json=asked, headers=headers, timeout=60)


async def test_words_become_a_request_that_is_shown_sent_told_and_recorded(
    product, rest, model, shop, create_order
):
    """C2.1, C4.4, C5.1, C5.2, C5.4, C6.1, C6.5, C7.1 to C7.5, and MCP calls the same tool."""
    proposal = proposes(create_order, ORDER, reason="It is the tool that orders.")
    model.script(proposal, proposal, "Two kettles are ordered: number 1.")
    asked = {"user_instructions": WANTED, "tool_ids": [create_order]}

    shown = say(product.url, product.token, **asked, dry_run=True).json()
    assert (shown["status"], shown["selected_tool"]) == ("success", create_order)
    assert (shown["raw_response"], shown["execution_id"]) == (None, None)
    assert shown["http_spec"] == {
        "method": "POST",
        "url": f"{shop.base_url}/orders",
        "headers": {},
        "query_params": {},
        "body": {"item": "kettle", "line": {"amount": 2}},
    }
    assert not shop.requests("POST", "/orders")

    response = say(product.url, product.token, **asked, format_response=True)
    answer = response.json()
    assert response.status_code == 200
    assert answer["http_spec"] == shown["http_spec"]
    assert answer["raw_response"]["status_code"] == 201
    assert answer["raw_response"]["body"]["order"]["asked"] == {"item": "kettle", "line": {"amount": 2}}
    assert answer["formatted_response"] == "Two kettles are ordered: number 1."
    (arrived,) = shop.requests("POST", "/orders")
    assert arrived.header("authorization") == f"Bearer {API_TOKEN}"
    assert arrived.json == {"item": "kettle", "line": {"amount": 2}}

    recorded = rest.get(f"/workflow-requests/{answer['request_id']}/")
    assert (recorded["user_instructions"], recorded["answer"]) == (WANTED, answer)
    assert [stage["state"] for stage in answer["stages"]] == ["done"] * 4
    execution = rest.execution(answer["execution_id"])
    assert (execution["state"], execution["output"]) == ("completed", {"number": 1})

    async with client_of_2026(product) as client:
        called = await client.call_tool(create_order, {"item": "cup", "amount": 6})
    assert called.structured_content == {"number": 2}
    assert [order.json["item"] for order in shop.requests("POST", "/orders")] == ["kettle", "cup"]
    doors = {found["door"] for found in rest.executions(tool=create_order)}
    assert doors == {"workflow", "mcp"}

    seen = json.dumps([shown, answer, recorded, execution]) + product.output
    assert API_TOKEN not in seen + "".join(asked.prompt for asked in model.asked)
    assert KEY not in seen


def test_a_request_whose_process_was_killed_says_so_and_nothing_is_sent_twice(
    product, rest, model, shop, create_order, tmp_path
):
    """C5.3, C7.7: the API may have taken the order, and the records say what is known."""
    model.script(proposes(create_order, {"item": "pan", "amount": 1}))
    shop.tell("POST", "/orders", Reply(201, {"order": {"id": 7}}, held=True))
    url = f"http://127.0.0.1:{(port := free_port())}"
    place = product.variables | {"PORT": str(port)}
    web = running(
        web_command(port), answers_at=f"{url}/admin/login/", log=tmp_path / "web.log", environment=place
    )
    with web as process:
        asking = threading.Thread(target=say_in_vain, args=(url, product.token, create_order))
        asking.start()
        assert shop.holding.wait(30)
        process.kill()
        asking.join(30)
    shop.told.clear()
    request = rest.get("/workflow-requests/")["results"][0]
    assert request["status"] == "running"

    # Nobody has given up on it before its deadline, which is brought forward here: it is a minute away.
    product.manage("shell", "-c", BRING_FORWARD)
    path = f"/workflow-requests/{request['id']}/"
    ended = wait_until(lambda: (found := rest.get(path))["status"] == "error" and found, 40, product.told)
    assert (ended["error_stage"], ended["failure"]) == ("api_execution", "interrupted")
    assert ended["execution_id"] == request["id"]
    execution = wait_until(
        lambda: (found := rest.execution(request["id"]))["state"] == "unconfirmed" and found, 60, product.told
    )
    assert "not known" in execution["error"]["message"]
    assert len(shop.requests("POST", "/orders")) == 1


def say_in_vain(url: str, token: str, tool: str) -> None:
    with pytest.raises(httpx2.TransportError):
        say(url, token, user_instructions=WANTED, tool_ids=[tool])


BRING_FORWARD = """
from django.utils import timezone
from orchestration.models import WorkflowRequest
WorkflowRequest.objects.filter(status="running").update(deadline_at=timezone.now())
"""
