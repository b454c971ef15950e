"""The model proposes, the product decides: what is let through, and what is refused and never sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from catalogue.exposure import forget_catalogue
from catalogue.models import Revision, Workflow
from executions.models import Execution
from tests.engines.model_answers import proposes
from tests.engines.model_server import ModelServer
from tests.engines.target_api import TargetApi, running_target_api
from tests.orchestration.engine_tools import discover
from tests.orchestration.shop import EVERY_TOOL, ask, shop, store

__all__ = ["shop"]

pytestmark = pytest.mark.django_db(transaction=True)
BODY = {"channel": "words", "line": {"item": "lamp", "amount": 2}}


@pytest.fixture
def foreign() -> Iterator[TargetApi]:
    """Somebody else's server, that takes everything and must get nothing."""
    with running_target_api() as api:
        yield api


def insist(model_server: ModelServer, proposal: Any) -> None:
    """Say the same however often one is asked."""
    model_server.answer_by(lambda asked: proposal)


def reading(url: str, **more: Any) -> dict[str, Any]:
    return {"method": "GET", "url": url} | more


def ordering(**more: Any) -> dict[str, Any]:
    return {"method": "POST", "url": "{shop}/orders", "body": BODY} | more


def filled(request: Any, shop: TargetApi, foreign: TargetApi) -> Any:
    """`{shop}` and `{foreign}` stand for the addresses, which are known only now."""
    addresses = {"{shop}": shop.base_url, "{foreign}": foreign.base_url, "{port}": str(shop.port)}
    url = request["url"]
    for name, address in addresses.items():
        url = url.replace(name, address)
    return request | {"url": url}


@contextmanager
def nothing_sent_yet(*apis: TargetApi) -> Iterator[None]:
    """A row of a table: what was let through before it is not held against it."""
    Execution.objects.all().delete()
    for api in apis:
        api.arrived.clear()
    yield


def assert_refused(response: Any, *, why: str = "") -> None:
    answer = response.json()
    assert response.status_code == 422, answer
    assert (answer["error_stage"], answer["failure"]) == ("llm_selection", "proposal_refused")
    assert why in answer["error"]
    assert (answer["execution_id"], answer["raw_response"], answer["http_spec"]) == (None, None, None)
    assert not Execution.objects.exists()


FOREIGN_REQUESTS = [
    reading("{foreign}/orders/A-7"),
    reading("{shop}@{foreign}/orders/A-7"),
    reading("http://127.0.0.1:{port}@evil.example/orders/A-7"),
    reading("http://evil.example#@127.0.0.1:{port}/orders/A-7"),
    reading("https://127.0.0.1:{port}/orders/A-7"),
    reading("http://127.0.0.1.evil.example:{port}/orders/A-7"),
    reading("//evil.example/orders/A-7"),
    reading("/orders/A-7"),
    reading("file:///etc/passwd"),
    reading("http://169.254.169.254/latest/meta-data/"),
    reading("{shop}/orders/A-7/../../admin"),
    reading("{shop}/orders/..%2f..%2fadmin"),
    reading("{shop}/orders/A-7/refund"),
    reading("{shop}/orders/"),
    reading("{shop}/orders/A-7#fragment"),
    reading("{shop}\\@evil.example/orders/A-7"),
    reading("{shop}/orders/A-7", method="DELETE"),
    reading("{shop}/orders/A-7", method="POST"),
    reading("{shop}/orders/A-7", body={"state": "paid"}),
    reading("{shop}/orders/A-7", headers={"Authorization": "Bearer mine"}),
    reading("{shop}/orders/A-7", headers={"Host": "evil.example"}),
    reading("{shop}/orders/A-7", headers={"X-Forwarded-Host": "evil.example"}),
    reading("{shop}/orders/A-7", headers={"X-Note": "a\r\nX-Admin: yes"}),
    reading("{shop}/orders/A-7", query_params={"admin": "true"}),
    reading("{shop}/orders/A-7?admin=true"),
    reading("{shop}/orders/A-8"),
    reading("{shop}/orders/A-8; DROP TABLE orders"),
]


def test_a_request_that_is_not_the_tools_own_is_refused(model_server, shop, foreign, subtests):
    """C4.5: method, scheme, host, path, query, headers and body have to be those of get_order."""
    store(shop)
    for proposed in FOREIGN_REQUESTS:
        with subtests.test(**proposed), nothing_sent_yet(shop, foreign):
            request = filled(proposed, shop, foreign)
            insist(model_server, proposes("get_order", {"order_id": "A-7"}, http_request=request))

            assert_refused(ask(), why="describe different calls")
            assert shop.arrived == foreign.arrived == []


OTHER_BODIES = [
    ordering(body=BODY | {"discount": 100}),
    ordering(body=BODY | {"channel": "staff"}),
    ordering(body={"line": {"item": "lamp", "amount": 2, "price": 0}, "channel": "words"}),
    ordering(body={"line": {"item": "lamp", "amount": 11}, "channel": "words"}),
    ordering(body={"line": {"item": "lamp"}, "channel": "words"}),
    ordering(body={"line": {"item": {"$ne": None}, "amount": 2}, "channel": "words"}),
    ordering(body=[BODY, BODY]),
    ordering(body="item=lamp"),
    ordering(headers={"X-Urgent": "perhaps"}),
    ordering(headers={"Idempotency-Key": "mine"}),
    ordering(query_params={"as": "admin"}),
]


def test_a_body_with_more_or_other_fields_than_declared_is_refused(model_server, shop, foreign, subtests):
    """C4.5"""
    store(shop)
    for proposed in OTHER_BODIES:
        with subtests.test(**proposed), nothing_sent_yet(shop):
            request = filled(proposed, shop, foreign)
            arguments = {"item": "lamp", "amount": 2}
            insist(model_server, proposes("create_order", arguments, http_request=request))

            assert_refused(ask("Two lamps", EVERY_TOOL), why="describe different calls")
            assert shop.arrived == []


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({}, "/order_id"),
        ({"order_id": 7}, "/order_id"),
        ({"order_id": "seven"}, "/order_id"),
        ({"order_id": "A-7/../A-8"}, "/order_id"),
        ({"order_id": "A-7", "admin": True}, "/admin"),
        ({"order_id": None}, "/order_id"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_refused_at_their_places(
    model_server, shop, arguments, place
):
    """C4.3, C4.5"""
    store(shop)
    insist(model_server, proposes("get_order", arguments))

    assert_refused(ask(), why=place)
    assert shop.arrived == []


@pytest.mark.parametrize("tool", ["create_order", "Get_Order", "get_order ", "list_workflows", "", "*"])
def test_a_tool_that_the_request_does_not_name_is_refused_though_it_exists(model_server, shop, tool):
    """C4.2"""
    store(shop)
    insist(model_server, proposes(tool, {"item": "lamp", "amount": 1}))

    response = ask(tool_ids=["get_order"])

    assert response.status_code == 422
    assert shop.arrived == []


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"arguments": {"order_id": "A-7", "fields": "all"}},
        {"arguments": {"order_id": "A-7", "fields": None}},
        {"request": {"query_params": {"fields": "all"}}},
        {"request": {"headers": {"Accept": "application/json"}}},
    ],
    ids=["both", "default-in-arguments", "null", "default-in-request", "accept"],
)
def test_arguments_and_a_request_that_mean_the_same_are_let_through(model_server, shop, more):
    """C4.4, C4.5: a default that one of them spells out makes no difference."""
    store(shop)
    arguments = more.get("arguments", {"order_id": "A-7"})
    request = reading(f"{shop.base_url}/orders/A-7", **more.get("request", {}))
    insist(model_server, proposes("get_order", arguments, http_request=request))

    answer = ask().json()

    meant = {name: given for name, given in arguments.items() if given is not None}
    assert (answer["status"], answer["arguments"]) == ("success", meant)


def test_a_request_without_its_arguments_is_sent_back(model_server, shop, foreign):
    """C4.3, C4.4: the arguments are what counts, and the model is told which ones are missing."""
    store(shop)
    request = filled(ordering(headers={"x-urgent": "true"}), shop, foreign)
    arguments = {"item": "lamp", "amount": 2, "urgent": True}
    model_server.script(
        {"tool": "create_order", "reason": "", "http_request": request},
        proposes("create_order", arguments, http_request=request),
    )

    answer = ask("Two lamps, quickly", EVERY_TOOL).json()

    assert "/item" in model_server.asked[1].prompt
    assert answer["arguments"] == arguments
    assert (shop.last.json, shop.last.header("x-urgent")) == (BODY, "true")


def test_numbers_are_texts_in_the_query_of_a_request(model_server, shop):
    """C4.3"""
    store(shop)
    request = reading(f"{shop.base_url}/orders", query_params={"limit": "5", "state": "open"})
    arguments = {"limit": 5, "state": "open"}
    model_server.script(proposes("list_orders", arguments, http_request=request))

    answer = ask("Five open orders").json()

    assert answer["arguments"] == arguments
    assert sorted(shop.last.query) == [("limit", "5"), ("state", "open")]


def test_a_tool_of_another_engine_takes_no_request(model_server, example_engine, foreign):
    """C4.5: it is none of an engine's, so whoever proposes one is up to something else."""
    discover(example_engine)
    request = reading(f"{foreign.base_url}/collect")
    insist(model_server, proposes("text_statistics", {"text": "a"}, http_request=request))

    assert_refused(ask("Count", ["text_statistics"]), why="not an HTTP tool")
    assert foreign.arrived == []


def test_what_a_curator_has_fixed_is_sent_though_neither_person_nor_model_names_it(model_server, shop):
    """Issue 13, 5: the model is not told of it, and what it proposes instead is refused."""
    store(shop)
    Workflow.objects.filter(tool_name="get_order").update(
        argument_overrides={"fields": {"constant": "state"}}
    )
    Revision.bump()
    forget_catalogue()
    insist(model_server, proposes("get_order", {"order_id": "A-7"}))
    answer = ask("Where is A-7?", ["get_order"]).json()
    assert answer["status"] == "success", answer
    assert answer["http_spec"]["query_params"] == {"fields": "state"}, answer["http_spec"]
    assert "fields" not in model_server.asked[0].prompt
    assert Execution.objects.get().payload.input == {"order_id": "A-7", "fields": "state"}
    insist(model_server, proposes("get_order", {"order_id": "A-7", "fields": "all"}))
    assert "/fields" in ask("All of A-7?", ["get_order"]).json()["error"]
