"""HTTP tools by REST: submitted, read, replaced and removed."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from loguru import logger

from catalogue.access import Scope
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.declared_tools import API, BEARER, TOKEN, declared
from tests.factories import make_execution, make_filter, make_source, make_workflow

pytestmark = pytest.mark.django_db

FULL = declared(
    "place_order",
    endpoint=f"{API}/v1/customers/{{customer}}/orders",
    method="POST",
    api={
        "authentication": BEARER,
        "body_format": "json",
        "idempotency_header": "Idempotency-Key",
    },
    title="Place an order",
    description="Places an order for a customer.",
    tags=["orders", "money"],
    input_schema={
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "amount": {"type": "number", "minimum": 0},
            "note": {"type": "string"},
            "urgent": {"type": "boolean"},
        },
        "required": ["customer", "amount"],
        "additionalProperties": False,
    },
    output_schema={"type": "object", "properties": {"number": {"type": "string"}}},
    field_mappings={
        "input": {
            "customer": {"in": "path", "name": "customer", "explode": True, "slashes": False},
            "amount": {"in": "body", "name": "/payment/amount", "explode": True, "slashes": False},
            "note": {"in": "header", "name": "X-Note", "explode": True, "slashes": False},
            "urgent": {"in": "query", "name": "urgent", "explode": True, "slashes": False},
        },
        "constants": [{"in": "query", "name": "format", "value": "full"}],
        "output": {"number": "/order/number"},
    },
    timeout_seconds=20,
    cache_seconds=None,
)


def submit(body, client=None):
    return (client or administrator()).post("/tools", body)


def stored(body, client=None):
    """The tools of the answer to a submission that has to work."""
    response = submit(body, client)
    assert response.status_code in (200, 201), response.json()
    return response.json()["tools"]


def test_a_submitted_tool_is_stored_with_an_id_and_read_as_it_was_declared():
    """C1.1, C1.2, C1.4, C9: everything of it but the secret."""
    client = administrator()

    response = submit(FULL, client)

    assert response.status_code == 201
    assert response.json() == {
        "tools": [
            {
                "id": "place_order",
                "name": "place_order",
                "source": "api.example.com",
                "change": "added",
                "exposed": True,
                "hidden_because": "",
                "note": "",
            }
        ],
        "new_sources": ["api.example.com"],
        "notes": [],
        "dry_run": False,
    }
    read = client.get("/api/tools/place_order/").json()
    told = {name: read.pop(name) for name in ("id", "source", "exposed", "hidden_because", "updated_at")}
    assert told["id"] == "place_order" and told["exposed"]
    expected = json.loads(json.dumps(FULL))
    del expected["api"]["authentication"]["token"]
    assert read == expected
    workflow = Workflow.objects.get()
    assert (workflow.tool_name, workflow.enabled, workflow.effective_timeout_seconds) == (
        "place_order",
        True,
        20,
    )
    assert workflow.source.credentials == {"token": TOKEN}
    assert DiscoveryRun.objects.get().added == 1


def test_the_same_tool_again_changes_nothing_and_has_the_same_id():
    """C1.1: whoever submits at every start of theirs makes no noise."""
    client = administrator()
    stored(FULL, client)
    revision, runs = Revision.current(), DiscoveryRun.objects.count()

    again = submit(FULL, client)
    without_secret = json.loads(json.dumps(FULL))
    del without_secret["api"]["authentication"]["token"]
    once_more = submit(without_secret, client)

    assert [answer.status_code for answer in (again, once_more)] == [200, 200]
    assert [answer.json()["tools"][0]["change"] for answer in (again, once_more)] == ["unchanged"] * 2
    assert again.json()["tools"][0]["id"] == "place_order"
    assert (Revision.current(), DiscoveryRun.objects.count()) == (revision, runs)


def test_a_tool_that_changes_keeps_its_id():
    """C1.1"""
    stored(declared())
    (again,) = stored(declared(description="Something else."))

    assert (again["id"], again["change"]) == ("get_order", "updated")
    assert Workflow.objects.get().description == "Something else."


def test_names_that_clash_get_ids_of_their_own_and_the_answer_says_so():
    """C1.1, A6.4"""
    (first,) = stored(declared())
    (second,) = stored(declared(endpoint="https://other.example.com/orders/{order_id}"))

    assert (first["id"], first["note"]) == ("get_order", "")
    assert second["id"] == "get_order_other.example.com"
    assert second["note"] == "The id get_order already belongs to another tool."
    assert second["source"] == "other.example.com"


@pytest.mark.parametrize("form", ["list", "object"])
def test_many_are_stored_at_once_in_their_order(form):
    """C1.1"""
    tools = [declared(name) for name in ("c", "a", "b")]

    answered = stored(tools if form == "list" else {"tools": tools})

    assert [tool["id"] for tool in answered] == ["c", "a", "b"]
    assert Source.objects.count() == 1


@pytest.mark.databases("catalogue.rest.tools")
def test_tools_are_retrieved_by_a_list_of_ids():
    """C1.2: at both addresses, whatever else there is."""
    client = administrator()
    stored([declared(name) for name in ("a", "b", "c")], client)

    for address in ("/tools", "/api/tools/"):
        answer = client.get(address, {"ids": "c, a"}).json()
        assert [tool["id"] for tool in answer["results"]] == ["a", "c"]
        assert answer["results"][0]["api"]["endpoint"] == f"{API}/v1/orders/{{order_id}}"


def test_ids_that_do_not_exist_are_named():
    """C1.3"""
    client = administrator()
    stored(declared("a"), client)
    make_workflow(tool_name="of_an_engine")

    refused = client.get("/tools", {"ids": "a,nowhere,of_an_engine"})

    assert refused.status_code == 404
    assert refused.json()["detail"] == "These tools do not exist: nowhere, of_an_engine."
    assert [problem["message"] for problem in refused.json()["errors"]] == [
        "No such tool: nowhere",
        "No such tool: of_an_engine",
    ]
    missing = client.get("/api/tools/nowhere/")
    assert missing.status_code == 404 and "/api/tools/nowhere/" in missing.json()["detail"]


def test_an_agents_token_sees_what_agents_see_and_stores_nothing():
    """C1.2, A4.2"""
    stored([declared("shown"), declared("filtered")])
    stored({"tools": [declared("hidden")], "expose": False})
    make_filter("filtered", action="exclude")
    make_filter("*")
    reader = agent()

    assert [tool["id"] for tool in reader.get("/tools").json()["results"]] == ["shown"]
    assert reader.get("/api/tools/hidden/").status_code == 404
    assert reader.get("/tools", {"ids": "hidden"}).status_code == 404
    everything = administrator().get("/api/tools/", {"ordering": "id"}).json()["results"]
    assert [(tool["id"], tool["exposed"], tool["hidden_because"]) for tool in everything] == [
        ("filtered", False, "hidden by filter"),
        ("hidden", False, "disabled"),
        ("shown", True, ""),
    ]
    refused = [
        submit(declared("x"), reader),
        reader.put("/api/tools/shown/", declared("shown")),
        reader.delete("/api/tools/shown/"),
    ]
    assert [response.status_code for response in refused] == [403] * 3
    assert all("catalogue:admin" in response.json()["detail"] for response in refused)


BROKEN = declared(
    endpoint="/orders",
    method="FETCH",
    api={"authentication": {"type": "bearer", "tokn": TOKEN}},
    naem="x",
    timeout_seconds=0,
)
BROKEN_PATHS = ["/api/authentication/tokn", "/api/method", "/naem", "/timeout_seconds"]


@pytest.mark.parametrize(
    ("body", "start"),
    [(BROKEN, ""), ([declared(), BROKEN], "/1"), ({"tools": [declared(), BROKEN]}, "/tools/1")],
    ids=["one", "list", "object"],
)
def test_every_mistake_is_named_where_it_stands_and_nothing_is_stored(body, start):
    """C1.4, A5.3: without a word of the secret in the wrong place."""
    refused = submit(body)

    assert refused.status_code == 400
    assert sorted(problem_paths(refused)) == [start + path for path in BROKEN_PATHS]
    assert TOKEN not in refused.content.decode()
    assert not Source.objects.exists() and not Workflow.objects.exists()


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        (declared(endpoint="ftp://api.example.com/x"), "/api/endpoint"),
        (declared(endpoint="https://me:pw@api.example.com/x"), "/api/endpoint"),
        (declared(endpoint="https://api.example.com/../x"), "/api/endpoint"),
        (declared(endpoint="http://169.254.169.254/latest"), "/api/endpoint"),
        (declared(input_schema={"type": "object", "properties": {}}), "/api/endpoint"),
        (declared(input_schema={"type": "array"}), "/input_schema"),
        (
            declared(
                endpoint=API, input_schema={"type": "object", "properties": {"a": {"type": "nonsense"}}}
            ),
            "/input_schema",
        ),
        (
            declared(
                endpoint=API,
                input_schema={"type": "object", "properties": {"a": {"$ref": "https://example.com/s"}}},
            ),
            "/input_schema",
        ),
        (declared(output_schema={"type": 7}), "/output_schema"),
        (declared(name=""), "/name"),
        (declared(api={"authentication": {}}), "/api/authentication"),
    ],
)
def test_a_tool_that_cannot_be_called_is_refused_and_not_stored_as_something_else(tool, path):
    """C1.4, A5.3: unlike an engine's schema, one that is declared here is never replaced."""
    refused = submit(tool)

    assert refused.status_code == 400
    assert path in problem_paths(refused)
    assert not Workflow.objects.exists()


def test_two_of_one_name_in_a_submission_are_refused():
    """A5.3"""
    refused = submit([declared(), declared()])

    assert problem_paths(refused) == ["/1/name"]


def test_a_dry_run_tells_everything_and_stores_nothing():
    """C1.1"""
    stored(declared("old"))
    revision = Revision.current()

    answer = submit(
        {"tools": [declared("new"), declared("old", tags=["x"])], "source": "orders", "dry_run": True}
    )

    assert answer.status_code == 200 and answer.json()["dry_run"]
    assert answer.json()["new_sources"] == ["orders"]
    assert [(tool["id"], tool["change"]) for tool in answer.json()["tools"]] == [
        ("new", "added"),
        ("old_orders", "added"),
    ]
    assert Workflow.objects.count() == Source.objects.count() == 1
    assert Revision.current() == revision


def test_secrets_are_in_no_answer_no_log_and_no_row():
    """C9: whatever is done with the tool, and whatever is wrong with it."""
    lines = []
    sink = logger.add(lines.append, level="DEBUG", diagnose=True)
    client = administrator()
    answers = [
        submit(FULL, client),
        client.get("/api/tools/"),
        client.get("/api/tools/place_order/"),
        client.put("/api/tools/place_order/", FULL),
        client.get("/api/sources/api.example.com/"),
        client.get("/api/workflows/place_order/"),
        submit(FULL | {"name": 7}, client),
        submit(FULL | {"api": FULL["api"] | {"authentication": {"type": "basic", "token": TOKEN}}}, client),
        submit(FULL | {"api": FULL["api"] | {"authentication": BEARER | {"token": f"{TOKEN}ü"}}}, client),
    ]
    logger.remove(sink)

    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 200, 400, 400, 400]
    assert not any(TOKEN in answer.content.decode() for answer in answers)
    assert not any(TOKEN in line for line in lines)
    row = Workflow.objects.values().get()
    assert TOKEN not in json.dumps(row, default=str)
    assert TOKEN not in json.dumps(Source.objects.values("config").get(), default=str)


def test_a_submission_cannot_change_the_credentials_of_other_tools():
    """C1.4: neither by their address nor by the source's name."""
    stored(declared(api={"authentication": BEARER}))
    other = declared("cancel_order", api={"authentication": BEARER | {"token": "another-token"}})

    for body in (other, {"tools": [other], "source": "api.example.com"}):
        refused = submit(body)
        assert refused.status_code == 400
        assert problem_paths(refused)[0].endswith("/api/authentication/token")
        told = refused.json()["errors"][0]["message"]
        assert "which its other tools use" in told and "another-token" not in told
    assert Source.objects.get().credentials == {"token": TOKEN}

    (elsewhere,) = stored({"tools": [other], "source": "second-account"})
    assert elsewhere["source"] == "second-account"
    assert Source.objects.get(name="second-account").credentials == {"token": "another-token"}


def test_the_secrets_of_an_api_never_go_to_another_one():
    """C1.4: a tool that points elsewhere becomes a tool of elsewhere, or is refused."""
    client = administrator()
    stored(declared(api={"authentication": BEARER}), client)
    moved = declared(
        endpoint="https://evil.example.net/v1/orders/{order_id}", api={"authentication": {"type": "bearer"}}
    )

    refused = client.put("/api/tools/get_order/", moved)
    named = submit({"tools": [moved], "source": "api.example.com"}, client)
    assert [refused.status_code, named.status_code] == [400, 400]
    assert problem_paths(refused) == ["/api/endpoint"]
    assert problem_paths(named) == ["/tools/0/api/endpoint"]

    answer = submit(moved, client)
    assert answer.json()["tools"][0]["source"] == "evil.example.net"
    assert Source.objects.get(name="evil.example.net").credentials == {}
    assert answer.json()["notes"] == [
        "Source evil.example.net has no token yet: enter it there before its tools are called."
    ]


def test_a_named_source_has_to_be_one_of_http_tools():
    make_source("engine")

    refused = submit({"tools": [declared()], "source": "engine"})
    unusable = submit({"tools": [declared()], "source": "no such name!"})

    assert problem_paths(refused) == problem_paths(unusable) == ["/source"]
    assert "of another kind" in refused.json()["errors"][0]["message"]


# Replacing


def test_what_was_read_can_be_sent_back_and_changed():
    """C1.4"""
    client = administrator()
    stored(FULL, client)
    read = client.get("/api/tools/place_order/").json()
    run_count = DiscoveryRun.objects.count()

    same = client.put("/api/tools/place_order/", read)
    assert same.status_code == 200 and same.json() == read
    assert DiscoveryRun.objects.count() == run_count

    changed = client.put("/api/tools/place_order/", read | {"description": "Orders something."})
    assert changed.status_code == 200
    assert changed.json()["description"] == "Orders something."
    assert changed.json()["id"] == "place_order"
    assert Workflow.objects.get().source.credentials == {"token": TOKEN}


def test_a_tool_keeps_its_name_its_source_and_what_is_told_of_it():
    client = administrator()
    stored(declared(), client)
    read = client.get("/api/tools/get_order/").json()

    refused = client.put(
        "/api/tools/get_order/", read | {"source": "other", "exposed": False, "id": "other", "name": "other"}
    )
    assert refused.status_code == 400
    assert sorted(problem_paths(refused)) == ["/exposed", "/id", "/source"]
    renamed = client.put("/api/tools/get_order/", declared("other"))
    assert problem_paths(renamed) == ["/name"]


@pytest.mark.parametrize("kind", ["strng", "array", ["object", "null"]])
def test_every_field_of_a_wrong_form_is_named_at_once(kind):
    """C1.4: each at its place, also a schema of arguments that is not an object's."""
    response = administrator().post(
        "/tools", declared() | {"description": "", "input_schema": {"type": kind}, "timeout_seconds": 0}
    )

    assert sorted(problem_paths(response)) == ["/description", "/input_schema", "/timeout_seconds"]


def test_a_list_of_results_may_be_declared():
    """C1.4: MCP promises objects only, yet the declaration is kept whole."""
    client = administrator()
    orders = {"type": "array", "items": {"type": "object"}}
    stored(declared("orders", endpoint=f"{API}/orders", output_schema=orders), client)

    read = client.get("/api/tools/orders/").json()

    assert read["output_schema"] == orders
    assert Workflow.objects.get().output_schema is None
    (again,) = stored(declared("orders", endpoint=f"{API}/orders", output_schema=orders), client)
    assert again["change"] == "unchanged"


# Removing


def test_a_removed_tool_is_gone_its_history_stays_and_it_comes_back_with_its_id():
    """A1.3, C1.1"""
    client = administrator()
    stored([declared(), declared("other")], client)
    workflow = Workflow.objects.get(tool_name="get_order")
    execution = make_execution(workflow)

    assert client.delete("/api/tools/get_order/").status_code == 204

    assert client.get("/api/tools/get_order/").status_code == 404
    assert client.delete("/api/tools/get_order/").status_code == 404
    assert client.put("/api/tools/get_order/", declared()).status_code == 404
    assert [tool["id"] for tool in client.get("/tools").json()["results"]] == ["other"]
    assert client.get(f"/api/executions/{execution.pk}/").json()["tool"] == "get_order"
    assert DiscoveryRun.objects.first().missing == 1

    (back,) = stored(declared(), client)
    assert (back["id"], back["change"], back["exposed"]) == ("get_order", "returned", True)
    assert Workflow.objects.get(tool_name="get_order").pk == workflow.pk


# Lists


@pytest.mark.databases("catalogue.rest.tools")
def test_the_list_is_filtered_and_has_only_declared_tools():
    client = administrator()
    stored([declared("a"), declared("b", description="Finds a needle.")], client)
    stored({"tools": [declared("c")], "source": "second", "expose": False}, client)
    make_workflow(tool_name="of_an_engine")

    def ids(**query):
        return [tool["id"] for tool in client.get("/api/tools/", query).json()["results"]]

    assert ids() == ["a", "b", "c"]
    assert ids(source="second") == ids(exposed="false") == ["c"]
    assert ids(search="needle") == ["b"]
    assert ids(exposed="true", ordering="-id") == ["b", "a"]
    assert client.get("/tools", {"sorce": "x"}).status_code == 400


def test_a_submission_of_thirty_tools_costs_hardly_more_queries_than_one_of_three():
    def queries(count, source):
        tools = [declared(f"{source}_{number}") for number in range(count)]
        with CaptureQueriesContext(connection) as captured:
            stored({"tools": tools, "source": source}, client)
        return len(captured)

    client = administrator()
    queries(1, "warm")
    # SQLite takes a thousand values in one statement.
    assert queries(30, "many") <= queries(3, "few") + 2


# Doors


@pytest.mark.parametrize("address", ["/tools", "/tools/", "/api/tools", "/api/tools/"])
def test_both_addresses_answer_alike_with_and_without_a_slash(address):
    """C1.1"""
    client = administrator()

    assert client.post(address, declared()).status_code == 201
    assert client.get(address).json()["count"] == 1
    refused = client.delete(address)
    assert refused.status_code == 405 and "DELETE" in refused.json()["detail"]


def test_errors_at_the_root_look_like_those_below_api():
    client, stranger = administrator(), TokenClient(Scope.RUN)

    nowhere = client.get("/tools/get_order")
    unknown_length = client.generic(
        "POST", "/tools", b"{}", HTTP_TRANSFER_ENCODING="chunked", CONTENT_LENGTH=""
    )
    no_json = client.post("/tools", "a=b", content_type="application/x-www-form-urlencoded")
    anonymous = TokenClient(Scope.RUN)
    anonymous.credentials()

    assert (
        nowhere.status_code == 404
        and "There is no such endpoint: /tools/get_order" in nowhere.json()["detail"]
    )
    assert unknown_length.status_code == 411 and "Content-Length" in unknown_length.json()["detail"]
    assert no_json.status_code == 415
    assert stranger.get("/tools").status_code == 403
    assert anonymous.post("/tools", declared()).status_code == 401


def test_staff_may_store_within_djangos_permissions():
    stored(declared())
    curator = staff_session("change_source", "view_workflow")

    assert submit(declared("second"), curator).status_code == 201
    refused = submit(declared("third", endpoint="https://new.example.com/x"), curator)
    assert refused.status_code == 400 and "catalogue.add_source" in refused.json()["errors"][0]["message"]
    assert submit(declared("third"), staff_session("view_workflow")).status_code == 403
    assert (
        submit(
            declared("third", endpoint="https://new.example.com/x"),
            staff_session("change_source", "add_source"),
        ).status_code
        == 201
    )


def test_a_declaration_names_the_secret_of_its_source_but_not_its_extra_keys():
    """C1.4: tools of a source with extra keys can be submitted again with its token."""
    client = administrator()
    stored(FULL, client)
    source = Source.objects.get()
    config = source.config | {"extra_key_1_name": "X-Tenant-Key"}
    credentials = source.credentials | {"extra_key_1": "tenant-key-0123"}
    changed = client.patch(f"/api/sources/{source.name}/", {"config": config, "credentials": credentials})
    assert changed.status_code == 200 and "tenant-key-0123" not in changed.content.decode()
    for body in (FULL, {"tools": [FULL], "source": source.name}):
        assert stored(body, client)[0]["source"] == source.name
    assert Source.objects.get().credentials == credentials
