"""Declared HTTP tools in the catalogue: where they belong, what a refresh does, and races."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from catalogue.actions.sources import change_source, create_source, switch_sources
from catalogue.admin.discovery_runs import describe_counts
from catalogue.connections import close_connectors
from catalogue.descriptions import current_outages
from catalogue.discovery import refresh_source
from catalogue.http_tools import tool_config_of, write_tool_config
from catalogue.imports.pipeline import ToolsRefused
from catalogue.imports.tools import (
    StoredTools,
    remove_tool,
    replace_tool,
    store_tools,
)
from catalogue.models import DiscoveryRun, Source, Workflow
from catalogue.reconciliation import Change
from connectors.background import run_in_background_loop
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.declared_tools import API, BEARER, TOKEN, tool
from tests.engines.target_api import Reply, TargetApi, running_target_api
from tests.factories import NOWHERE, make_source, make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("catalogue.imports.tools"),
]


def add_api(name: str, base_url: str = API, *, token: str = "", **settings: Any) -> Source:
    """A source of HTTP tools; with a token it is sent as a bearer's."""
    config = {"base_url": base_url} | ({"authentication": "bearer"} if token else {}) | settings
    credentials = {"token": token} if token else {}
    return create_source(name=name, kind="http", config=config, credentials=credentials)


def told(stored: StoredTools) -> list[tuple[str, str, str]]:
    return [(one.tool_id, one.source, one.change) for one in stored.tools]


def refusal(act: Callable[[], object]) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ToolsRefused) as refused:
        act()
    return [(fault.position, fault.path, fault.message) for fault in refused.value.problems]


# Where a tool belongs


def test_a_tool_belongs_to_the_source_whose_address_it_begins_with():
    """C1.4: the closest one, by whole steps of the path."""
    for name, path in {"all": "", "v1": "/v1", "v1-orders": "/v1/orders", "v10": "/v10"}.items():
        add_api(name, f"{API}{path}")
    endpoints = ["/v2/x", "/v1/x", "/v1/orders/{order_id}", "/v1/ordersets", "/v10", "/v1"]

    stored = store_tools(
        [tool(f"t{at}", endpoint=f"{API}{path}") for at, path in enumerate(endpoints)], expose=True
    )

    assert [one.source for one in stored.tools] == ["all", "v1", "v1-orders", "v1", "v10", "v1"]
    assert not stored.new_sources
    paths = [Workflow.objects.get(tool_name=f"t{at}").metadata["path"] for at in range(6)]
    assert paths == ["/v2/x", "/x", "/{order_id}", "/ordersets", "", ""]


def test_who_one_is_at_the_api_decides_as_well():
    """C1.4: a tool never gets credentials that it did not ask for."""
    key = {"type": "api_key", "in": "header", "name": "X-Key", "key": TOKEN}
    ways: list[dict[str, Any]] = [
        {},
        {"authentication": BEARER},
        {"authentication": key},
        {"authentication": key | {"name": "x-key"}},
        {"authentication": key | {"in": "query"}},
        {"authentication": {"type": "basic", "username": "me", "password": TOKEN}},
        {"authentication": {"type": "basic", "username": "you", "password": TOKEN}},
    ]

    stored = store_tools([tool(f"t{at}", api=way) for at, way in enumerate(ways)], expose=True)

    host = "api.example.com"
    assert [one.source for one in stored.tools] == [
        host, f"{host}-2", f"{host}-3", f"{host}-3", f"{host}-4", f"{host}-5", f"{host}-6",
    ]  # fmt: skip
    assert stored.new_sources == [host, *(f"{host}-{number}" for number in range(2, 7))]
    more = store_tools([tool(f"more{at}", api=way) for at, way in enumerate(ways)], expose=True)
    assert [one.source for one in more.tools] == [one.source for one in stored.tools]


def test_of_two_accounts_the_secret_tells_which_is_meant():
    add_api("mine", token="my-token")
    add_api("yours", token="your-token")

    stored = store_tools([tool(api={"authentication": BEARER | {"token": "your-token"}})], expose=True)

    assert told(stored) == [("get_order", "yours", "added")]
    ((position, path, message),) = refusal(
        lambda: store_tools([tool("other", api={"authentication": {"type": "bearer"}})], expose=True)
    )
    assert (position, path) == (0, "")
    assert message == (
        'It may belong to several sources (mine, yours). Name one: send {"source": ..., "tools": [...]}, '
        "or use `add_tools --source`."
    )
    known = store_tools([tool(api={"authentication": {"type": "bearer"}})], expose=True)
    assert told(known) == [("get_order", "yours", "unchanged")], "where it is already it stays"


def test_a_source_added_later_takes_no_tool_away():
    """C1.1: the same submission means the same tool, whatever was added meanwhile."""
    store_tools([tool()], expose=True)
    add_api("closer", f"{API}/v1")

    assert told(store_tools([tool()], expose=True)) == [("get_order", "api.example.com", "unchanged")]
    assert told(store_tools([tool("new")], expose=True)) == [("new", "closer", "added")]


def test_tools_of_a_named_source_need_not_say_who_they_are():
    """C1.4"""
    source = add_api("orders", f"{API}/v1", token=TOKEN)

    stored = store_tools([tool(), tool("full", api={"authentication": BEARER})], source="orders", expose=True)

    assert [one.source for one in stored.tools] == ["orders", "orders"]
    basic = {"authentication": {"type": "basic", "username": "me"}}
    faults = refusal(
        lambda: store_tools(
            [tool("a", api=basic), tool("b", endpoint=f"{API}/v2"), tool("c", endpoint="https://x.example")],
            source="orders",
            expose=True,
        )
    )
    assert [(position, path) for position, path, _ in faults] == [
        (0, "/api/authentication"), (1, "/api/endpoint"), (2, "/api/endpoint"),
    ]  # fmt: skip
    assert source.workflows.count() == 2


def test_a_new_named_source_is_one_api():
    first = tool("a", api={"authentication": BEARER})
    faults = refusal(
        lambda: store_tools(
            [
                first,
                tool("b", endpoint="https://other.example.com/x"),
                tool("c", api={"authentication": {"type": "none"}}),
                tool("d", api={"authentication": BEARER | {"token": "another"}}),
                tool("e"),
            ],
            source="orders",
            expose=True,
        )
    )

    assert [(position, path) for position, path, _ in faults] == [
        (1, "/api/endpoint"), (2, "/api/authentication"), (3, "/api/authentication/token"),
    ]  # fmt: skip
    assert not Source.objects.exists()
    store_tools([first, tool("e")], source="orders", expose=False)
    source = Source.objects.get()
    assert (source.kind, source.config) == ("http", {"base_url": API, "authentication": "bearer"})
    assert source.new_workflows == Source.NewWorkflows.HIDDEN


def test_names_of_new_sources_are_free_and_fit():
    make_source("api.example.com")
    endpoints = [
        API,
        f"https://{'a' * 60}.{'b' * 60}.example",
        "https://xn--bcher-kva.example",
        "https://[2606:4700::1]",
    ]

    stored = store_tools(
        [tool(f"t{at}", endpoint=endpoint) for at, endpoint in enumerate(endpoints)], expose=True
    )

    assert stored.new_sources == ["api.example.com-2", "a" * 60, "xn--bcher-kva.example", "2606-4700-1"]


# What is kept


def test_what_was_stored_submitted_again_is_unchanged():
    """C1.4: reading and submitting are each other's inverse, for every way to say a thing."""
    tools = [
        tool(),
        tool("root", endpoint=API),
        tool("open", endpoint=f"{API}/x", input_schema={"type": "object", "additionalProperties": True}),
        tool("key", api={"authentication": {"type": "api_key", "in": "query", "name": "k", "key": TOKEN}}),
        tool(
            "oauth",
            api={
                "authentication": {
                    "type": "oauth_client_credentials",
                    "token_url": "https://auth.example.com/token/",
                    "client_id": "me",
                    "client_secret": TOKEN,
                    "scope": "a b",
                }
            },
        ),
        tool(
            "form",
            endpoint=f"{API}/x",
            method="POST",
            api={"body_format": "form"},
            input_schema={"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
            tags=["x"],
            cache_seconds=5,
        ),
    ]
    store_tools(tools, expose=True)

    again = [tool_config_of(workflow) for workflow in Workflow.objects.select_related("source")]

    assert {one.change for one in store_tools(again, expose=True).tools} == {Change.UNCHANGED}
    assert TOKEN not in json.dumps([write_tool_config(one) for one in again])
    assert TOKEN not in repr(again) and TOKEN not in repr(tools)


def test_new_tools_are_shown_as_the_submission_says_and_others_as_they_were():
    """A4.2"""
    add_api("orders")
    store_tools([tool("hidden")], expose=False)

    stored = store_tools([tool("hidden", tags=["x"]), tool("shown")], expose=True)

    assert [(one.exposed, one.hidden_because) for one in stored.tools] == [(False, "disabled"), (True, "")]
    switch_sources(Source.objects.all(), enabled=False)
    (off,) = store_tools([tool("later")], expose=True).tools
    assert (off.exposed, off.hidden_because) == (False, "source switched off")


def test_pruning_removes_what_the_submission_lacks_from_that_source_only():
    """A1.3"""
    store_tools([tool("a"), tool("b"), tool("c", endpoint="https://other.example.com")], expose=True)

    stored = store_tools([tool("a"), tool("d")], source="api.example.com", expose=True, prune=True)

    assert [(one.tool_id, one.change) for one in stored.tools] == [
        ("a", "unchanged"), ("d", "added"), ("b", "removed"),
    ]  # fmt: skip
    assert set(Workflow.objects.present().values_list("tool_name", flat=True)) == {"a", "c", "d"}
    run = DiscoveryRun.objects.first()
    assert run is not None and (run.added, run.unchanged, run.missing) == (1, 1, 1)


def test_a_tool_of_a_dead_source_is_stored_all_the_same():
    """A5.3: storing does not ask the API anything."""
    with http_tool_hosts("127.0.0.1"):
        store_tools([tool(endpoint=f"{NOWHERE}/x")], expose=True)

    source = Source.objects.get()
    assert source.name == "127.0.0.1" and source.last_refreshed_at is not None
    assert source.workflows.get().enabled


def test_a_tool_of_an_address_that_is_not_allowed_is_refused_in_words():
    """C1.4: before anything could be sent there."""
    ((position, path, message),) = refusal(lambda: store_tools([tool(endpoint=f"{NOWHERE}/x")], expose=True))

    assert (position, path) == (0, "/api/endpoint")
    assert "loopback" in message and "CATALOGUE_HTTP_TOOL_HOSTS" in message
    assert not Source.objects.exists()


def test_what_engines_list_is_removed_by_engines_alone():
    with pytest.raises(ValueError, match="is not an HTTP tool"):
        remove_tool(make_workflow())


def test_only_a_named_source_is_pruned():
    with pytest.raises(ValueError, match="name of a source"):
        store_tools([tool()], expose=True, prune=True)


# Refreshing


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with http_tool_hosts("127.0.0.1"), running_target_api() as running:
        yield running
        run_in_background_loop(close_connectors())


@pytest.mark.django_db(transaction=True)
def test_a_refresh_checks_the_connection_and_touches_no_tool(api):
    """A1.1, B9: what is declared here does not disappear because the API lists nothing."""
    store_tools(
        [tool("a", endpoint=f"{api.base_url}/orders"), tool("b", endpoint=f"{api.base_url}/weather")],
        expose=True,
    )
    before = list(Workflow.objects.values())

    run = refresh_source(Source.objects.get())

    source = Source.objects.get()
    assert describe_counts(run) == "The API was reached; its tools are declared in the catalogue"
    assert run.outcome == DiscoveryRun.Outcome.SUCCEEDED and not (run.found or run.missing)
    assert source.health_state == Source.HealthState.OK
    assert source.health_message.startswith("Its workflows are declared in the catalogue. ")
    assert source.next_refresh_at is not None
    assert list(Workflow.objects.values()) == before
    assert [arrived.method for arrived in api.arrived] == ["GET"]
    out = StringIO()
    call_command("refresh_sources", stdout=out)
    assert out.getvalue() == "127.0.0.1: its tools are declared in the catalogue; the API was reached.\n"


@pytest.mark.django_db(transaction=True)
def test_an_api_that_cannot_be_reached_is_an_outage_of_tools_that_stay(api):
    """A1.4, A5.4"""
    store_tools([tool(endpoint=f"{NOWHERE}/x")], expose=True)

    run = refresh_source(Source.objects.get())

    assert run.outcome == DiscoveryRun.Outcome.FAILED and run.error
    source = Source.objects.get()
    assert (source.health_state, source.failures) == (Source.HealthState.FAILING, 1)
    assert source.next_refresh_at is not None
    assert Workflow.objects.present().count() == 1
    (outage,) = current_outages()
    assert outage.was_listed, "agents are told that the tools are those that are known"


@pytest.mark.django_db(transaction=True)
def test_an_api_that_answers_anything_at_all_is_no_outage(api):
    """B9: hardly any API has something at its base URL."""
    api.tell("GET", "/", Reply(404, {"error": "nothing here"}))
    store_tools([tool(endpoint=f"{api.base_url}/orders")], expose=True)

    refresh_source(Source.objects.get())

    assert not current_outages()


# Races. All of them wait for each other at `Revision.lock`:
# - the same new tool twice at once: one row, one id, for the other it is unchanged;
# - two tools of one API that has no source yet: one source;
# - tools of one name for two APIs: two ids;
# - a submission while the source is checked: neither loses anything;
# - a submission while the source's settings change: the tool belongs to what the source is afterwards.


@pytest.mark.django_db(transaction=True)
def test_the_same_new_tool_at_once_is_one_tool():
    """C1.1"""
    stored = together(*[partial(store_tools, [tool()], expose=True)] * 6)

    changes = sorted(one.tools[0].change for one in stored)
    assert changes == ["added"] + ["unchanged"] * 5
    assert {one.tools[0].tool_id for one in stored} == {"get_order"}
    assert sum(len(one.new_sources) for one in stored) == 1
    assert Workflow.objects.count() == Source.objects.count() == DiscoveryRun.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_tools_of_one_new_api_at_once_get_one_source():
    """C1.1"""
    tools = [tool(f"t{number}", api={"authentication": BEARER}) for number in range(6)]
    stored = together(*(partial(store_tools, [one], expose=True) for one in tools))

    assert {one.tools[0].source for one in stored} == {"api.example.com"}
    assert Workflow.objects.count() == 6
    assert Source.objects.get().credentials == {"token": TOKEN}


@pytest.mark.django_db(transaction=True)
def test_tools_of_one_name_at_once_get_ids_of_their_own():
    """C1.1, A6.4"""
    tools = [tool(endpoint=f"https://api{number}.example.com") for number in range(6)]
    stored = together(*(partial(store_tools, [one], expose=True) for one in tools))

    assert len({one.tools[0].tool_id for one in stored}) == 6
    assert sorted(Workflow.objects.values_list("name", flat=True)) == ["get_order"] * 6


@pytest.mark.django_db(transaction=True)
def test_replacing_and_removing_at_once_leaves_one_of_both():
    """A1.3: a tool that is gone is not brought back by who meant to change it."""
    store_tools([tool()], expose=True)
    workflow = Workflow.objects.select_related("source").get()

    def replace() -> bool:
        try:
            replace_tool(workflow, tool(description="Changed."))
        except ToolsRefused:
            return False
        return True

    replaced, _ = together(replace, partial(remove_tool, workflow))

    workflow.refresh_from_db()
    assert workflow.missing_since is not None
    assert (workflow.description == "Changed.") is replaced


@pytest.mark.django_db(transaction=True)
def test_a_submission_while_the_source_is_checked_loses_nothing(api):
    """B6"""
    store_tools([tool("a", endpoint=f"{api.base_url}/orders")], expose=True)
    api.tell("GET", "/", Reply(200, {}, held=True))
    source = Source.objects.get()

    def submit() -> StoredTools:
        assert api.holding.wait(20)
        stored = store_tools([tool("b", endpoint=f"{api.base_url}/weather")], expose=True)
        api.released.set()
        return stored

    run, stored = together(partial(refresh_source, source), submit)

    assert run.outcome == DiscoveryRun.Outcome.SUCCEEDED
    assert told(stored) == [("b", "127.0.0.1", "added")]
    assert Workflow.objects.present().count() == 2
    assert Source.objects.get().health_state == Source.HealthState.OK


@pytest.mark.django_db(transaction=True)
def test_a_submission_while_the_settings_change_goes_where_they_lead():
    """A4.4: to the source as it was before or as it is after, never to a mixture."""
    source = add_api("orders")
    elsewhere = {"base_url": "https://elsewhere.example.com"}

    stored, _ = together(
        partial(store_tools, [tool()], expose=True), partial(change_source, source, config=elsewhere)
    )

    workflow = Workflow.objects.select_related("source").get()
    if stored.new_sources:
        assert workflow.source.name == "api.example.com"
    else:
        assert workflow.source.name == "orders"
    assert workflow.metadata["path"] == "/v1/orders/{order_id}"
