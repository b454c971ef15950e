"""What agents and their users read beside calling tools, through the official client, in both eras."""

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from mcp import Client, MCPError

from access.callers import Scope
from catalogue.descriptions import forget_outages
from catalogue.exposure import forget_catalogue
from catalogue.models import Source, Toolset, Workflow
from executions.models import Execution, State
from identity.tokens import Access, create_token
from mcp_bridge.resources import Reading, find_kind
from tests.executions.engines import in_thread
from tests.factories import make_execution, make_source, make_workflow, make_workflows
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import modern, owned, send

NOT_FOUND = {"2026-07-28": -32602, "legacy": -32002}
SCHEMA = {
    "type": "object",
    "properties": {"year": {"type": "integer", "description": "Which one."}, "draft": {"type": "boolean"}},
    "required": ["year"],
}


@pytest.fixture
def workflows() -> list[Workflow]:
    """Three of one engine, with tags."""
    source = make_source("books")
    return [
        make_workflow(source, name="balance", tags=["finance", "monthly report"], input_schema=SCHEMA),
        make_workflow(source, name="cash.flow", tags=["finance"]),
        make_workflow(source, name="holidays", tags=["people", "c++"]),
    ]


async def read(client: Client, uri: str) -> Any:
    """The one JSON document that is there."""
    (content,) = (await client.read_resource(uri, cache_mode="bypass")).contents
    assert content.mime_type == "application/json"
    assert content.uri == uri
    return json.loads(content.text)


async def test_a_workflow_is_read_by_a_former_name_while_that_works(connect, workflows, era):
    """By the rule of tools/call; the document has the present name."""
    later = (timezone.now() + timedelta(days=1)).isoformat()
    ended = (timezone.now() - timedelta(days=1)).isoformat()
    aliases = {"sheet": later, "older": ended}
    await in_database(Workflow.objects.filter(name="balance").update)(tool_aliases=aliases)
    async with connect(mode=era) as client:
        for kind in ("metadata", "schema"):
            assert (await read(client, f"workflow://{kind}/sheet"))["name"] == "balance"
            with pytest.raises(MCPError) as refused:
                await client.read_resource(f"workflow://{kind}/older")
            assert refused.value.code == NOT_FOUND[era]


async def refusal(client: Client, uri: str) -> MCPError:
    with pytest.raises(MCPError) as refused:
        await client.read_resource(uri)
    return refused.value


async def test_the_picker_shows_the_list_and_then_each_workflow(connect, workflows, era):
    """D8: with what a person chooses by; disabled workflows are not there."""
    await in_database(make_workflow)(name="hidden", enabled=False)
    await in_database(Workflow.objects.filter(name="balance").update)(
        title_override="Balance sheet", description_override=f"Makes it.\n{'More of it. ' * 50}"
    )
    async with connect(mode=era) as client:
        resources = (await client.list_resources()).resources
    assert [resource.uri for resource in resources] == [
        "workflow://list",
        "workflow://metadata/balance",
        "workflow://metadata/cash.flow",
        "workflow://metadata/holidays",
    ]
    balance = resources[1]
    assert (balance.name, balance.title, balance.mime_type) == (
        "balance",
        "Balance sheet",
        "application/json",
    )
    assert len(balance.description or "") <= 153
    assert (balance.description or "").startswith("Makes it. More of it.")


async def test_the_picker_comes_in_pages(connect, workflows, era, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"page_size": 3}
    async with connect(mode=era) as client:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        with pytest.raises(MCPError, match="Unknown cursor"):
            await client.list_resources(cursor="!")
    assert [len(page.resources) for page in (first, second)] == [3, 1]
    assert second.resources[0].uri == "workflow://metadata/holidays"
    assert second.next_cursor is None


async def test_templates_tell_every_address(connect, era):
    """D8, A8.1"""
    async with connect(mode=era) as client:
        templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [
        "workflow://list{?tags}",
        "workflow://metadata/{name}",
        "workflow://schema/{name}",
        "execution://{id}",
        "execution://{id}/result{?offset,query}",
        "execution://{id}/result/content/{number}{?offset}",
    ]
    assert all(template.description and template.title for template in templates)


async def test_the_list_has_names_only_and_what_each_is_for_is_read_one_by_one(connect, workflows, era):
    """D1, D8: progressive disclosure."""
    async with connect(mode=era) as client:
        document = await read(client, "workflow://list")
        balance = await read(client, f"workflow://metadata/{document['workflows'][0]}")
    assert document == {
        "workflows": ["balance", "cash.flow", "holidays"],
        "total": 3,
        "unavailable_sources": [],
    }
    assert balance["input_summary"] == "draft (boolean, optional), year (integer, required)"


async def test_the_list_names_the_engines_that_cannot_be_reached(connect, workflows):
    """A1.4"""
    failing = {"health_state": Source.HealthState.FAILING, "health_message": "no answer"}
    await in_database(Source.objects.filter(name="books").update)(**failing)
    async with connect() as client:
        document = await read(client, "workflow://list")
    assert [(gone["source"], gone["reason"]) for gone in document["unavailable_sources"]] == [
        ("books", "no answer")
    ]


TAGGED = [
    ("tags=finance", ["balance", "cash.flow"]),
    ("tags=finance,monthly%20report", ["balance"]),
    ("tags=finance%2Cmonthly%20report", ["balance"]),
    ("tags=%20finance%20,,", ["balance", "cash.flow"]),
    ("tags=c++", ["holidays"]),
    ("tags=c%2B%2B", ["holidays"]),
    ("tags=finance,people", []),
    ("tags=Finance", ["balance", "cash.flow"]),
    ("tags=%FF", []),
    ("tags=", ["balance", "cash.flow", "holidays"]),
    ("", ["balance", "cash.flow", "holidays"]),
]


async def test_tags_narrow_the_list_to_workflows_that_carry_all(connect, workflows, subtests):
    """D3, D8: whether the comma is encoded or not, since clients fill templates in either way."""
    async with connect() as client:
        for query, names in TAGGED:
            with subtests.test(query):
                document = await read(client, f"workflow://list?{query}")
                assert (document["workflows"], document["total"]) == (names, len(names))
                assert bool(document.get("hint")) == (not names)


async def test_metadata_and_schema_of_one_workflow(connect, workflows, era):
    """D8"""
    async with connect(mode=era) as client:
        metadata = await read(client, "workflow://metadata/balance")
        schema = await read(client, metadata["schema"])
        dotted = await read(client, "workflow://metadata/cash%2Eflow")
    assert (metadata["name"], metadata["source"], metadata["version"]) == ("balance", "books", "1.0.0")
    assert metadata["tags"] == ["finance", "monthly report"]
    assert not metadata.keys() & {"input_schema", "output_schema"}
    assert schema == {"name": "balance", "input_schema": SCHEMA, "output_schema": None}
    assert dotted["name"] == "cash.flow"


async def test_a_running_execution_is_read_anew_each_time(connect, era):
    """A8.1 to A8.3: no client keeps what is about to change."""
    execution = await in_database(lambda: owned(make_workflow(name="report"), state=State.RUNNING))()
    async with connect(mode=era) as client:
        before = await client.read_resource(f"execution://{execution.pk}")
        await in_database(Execution.objects.update)(progress=40, progress_message="Counting")
        after = json.loads((await client.read_resource(f"execution://{execution.pk}")).contents[0].text)
        refused = await refusal(client, f"execution://{execution.pk}/result")
    assert json.loads(before.contents[0].text)["state"] == "running"
    assert before.ttl_ms == 0
    assert (after["progress"], after["progress_message"]) == (40, "Counting")
    assert refused.code == NOT_FOUND[era]
    assert "report is still running" in refused.message
    assert f"execution://{execution.pk} shows" in refused.message


async def test_a_completed_execution_holds_its_output(connect, era):
    """A8.4: in its description, and as a resource of its own."""
    execution = await in_database(lambda: owned(make_workflow()))()
    async with connect(mode=era) as client:
        described = await read(client, f"execution://{execution.pk}")
        result = await read(client, f"execution://{execution.pk}/result")
    assert (described["state"], described["output"]) == ("completed", {"answer": 42})
    assert result == {"answer": 42}


async def test_a_text_is_read_as_it_is(connect):
    text = "Straße\n☃ \U0001f600"
    execution = await in_database(lambda: owned(make_workflow(), payload={"output": text}))()
    async with connect() as client:
        (content,) = (await client.read_resource(f"execution://{execution.pk}/result")).contents
    assert (content.text, content.mime_type) == (text, "text/plain")


@pytest.mark.parametrize("output", [None, 0, False, "", [], [None]])
async def test_outputs_that_are_nearly_nothing_are_results_too(connect, output):
    execution = await in_database(lambda: owned(make_workflow(), payload={"output": output}))()
    async with connect() as client:
        (content,) = (await client.read_resource(f"execution://{execution.pk}/result")).contents
    assert content.text == (output if isinstance(output, str) else json.dumps(output))


async def test_the_result_of_a_failed_run_says_that_there_is_none(connect, era):
    execution = await in_database(
        lambda: owned(make_workflow(name="report"), state=State.FAILED, error="No paper.")
    )()
    async with connect(mode=era) as client:
        described = await read(client, f"execution://{execution.pk}")
        refused = await refusal(client, f"execution://{execution.pk}/result")
    assert described["error"] == "No paper."
    assert "report failed, so it has no result" in refused.message


async def test_a_large_result_is_read_part_by_part(connect, era, settings):
    """Each part tells the address of the next, to programs and in words; together they are the output."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_result_characters": 1000}
    output = {"rows": [f"Zeile {number} ☃" for number in range(200)]}
    execution = await in_database(lambda: owned(make_workflow(), payload={"output": output}))()
    address: str | None = f"execution://{execution.pk}/result"
    texts = []
    async with connect(mode=era) as client:
        while address is not None:
            part, *note = (await client.read_resource(address)).contents
            assert (part.mime_type, part.uri) == ("text/plain", address)
            assert part.meta["workflow-catalogue/offset"] == sum(map(len, texts))
            texts.append(part.text)
            address = part.meta.get("workflow-catalogue/next")
            assert [f"The next part is {address}" in content.text for content in note] == (
                [True] if address else []
            )
        total = part.meta["workflow-catalogue/characters"]
        refused = await refusal(client, f"execution://{execution.pk}/result?offset={total}")
    assert len(texts) > 2 and max(map(len, texts)) == 1000
    assert json.loads("".join(texts)) == output
    assert f"the output has {total:,} characters" in refused.message


async def test_an_offset_that_is_no_number_is_refused(connect, subtests):
    execution = await in_database(lambda: owned(make_workflow()))()
    async with connect() as client:
        for offset in ("-1", "1.5", "x", "٣", "9" * 300, "1e3", "0x10"):
            with subtests.test(offset=offset):
                refused = await refusal(client, f"execution://{execution.pk}/result?offset={offset}")
                assert "offset must be an integer" in refused.message


async def test_only_its_own_executions_are_there_for_a_caller_and_all_for_an_administrator(connect, era):
    """Foreign ones and unknown ones are not told apart."""
    execution = await in_database(lambda: make_execution(make_workflow(), caller="token:0"))()
    admin = (await in_database(create_token)(name="root", scopes=[Scope.READ, Scope.ADMIN]))[1]
    unknown = uuid.UUID(int=0x4000_8000_0000_0000_0000)
    async with connect(mode=era) as client:
        for ending in ("", "/result"):
            foreign = await refusal(client, f"execution://{execution.pk}{ending}")
            missing = await refusal(client, f"execution://{unknown}{ending}")
            assert foreign.message.replace(str(execution.pk), "") == missing.message.replace(str(unknown), "")
            assert foreign.code == missing.code == NOT_FOUND[era]
    async with connect(as_token=admin, mode=era) as client:
        assert await read(client, f"execution://{execution.pk}/result") == {"answer": 42}


async def test_an_execution_has_one_address(connect):
    """Other spellings of its id are none; capitals make no difference, some clients normalise them."""
    key = (await in_database(lambda: owned(make_workflow()))()).pk
    async with connect() as client:
        for spelling in (key.hex, f"urn:uuid:{key}", f"%7B{key}%7D", f" {key}", f"{key}%00"):
            assert "Unknown execution" in (await refusal(client, f"execution://{spelling}")).message
        assert (await read(client, f"execution://{str(key).upper()}"))["execution_id"] == str(key)


NOT_THERE = [
    "workflow://metadata/nothing",
    "workflow://schema/",
    "workflow://schema/..%2F..%2Fetc",
    "workflow://schema/balance/",
    "workflow://schema/balance?version=2",
    "workflow://list/",
    "workflow://LIST",
    "workflow://list#top",
    "workflow://list?tag=finance",
    "workflow://list?tags=a&tags=b",
    "workflow:list",
    "workflow://",
    "execution://",
    "execution:///result",
    "execution://1",
    "execution://%7B00000000-0000-4000-8000-000000000000%7D",
    "execution://00000000-0000-4000-8000-000000000000/output",
    "file:///etc/passwd",
    "http://127.0.0.1/admin/",
    "no address",
    "",
    "workflow://metadata/" + "a" * 10_000,
    "workflow://list?tags=" + "a," * 5_000,
    "workflow://metadata/Straße ☃",
]


async def test_what_is_not_there_is_refused_with_what_there_is(connect, workflows, era, subtests):
    """By the code of each era (-32602 since SEP-2164), with the address, never with an empty result."""
    hints = ("workflow://list", "Unknown execution", "have at most 2,000", "{name}")
    async with connect(mode=era) as client:
        for uri in NOT_THERE:
            with subtests.test(uri=uri):
                refused = await refusal(client, uri)
                assert refused.code == NOT_FOUND[era]
                assert refused.data == {"uri": uri[:2000]}
                assert any(hint in refused.message for hint in hints)
                assert len(refused.message) < 500


async def test_the_scheme_may_be_in_capitals(connect, workflows):
    """RFC 3986 makes no difference there."""
    async with connect() as client:
        assert (await read(client, "WORKFLOW://schema/balance"))["name"] == "balance"


async def test_a_token_without_the_read_scope_sees_its_executions_only(connect, era):
    """Whoever may run can read what its own runs gave, but not the catalogue."""
    runner = (await in_database(create_token)(name="runner", scopes=[Scope.RUN]))[1]
    admin = (await in_database(create_token)(name="root", scopes=[Scope.ADMIN]))[1]
    async with connect(as_token=runner, mode=era) as client:
        assert (await client.list_resources()).resources == []
        templates = (await client.list_resource_templates()).resource_templates
        refused = await refusal(client, "workflow://list")
    names = [template.name for template in templates]
    assert names == ["execution", "execution_result", "execution_content"]
    assert (refused.code, "lacks the scope workflows:read" in refused.message) == (-32602, True)
    async with connect(as_token=admin, mode=era) as client:
        # Its scope includes the others.
        assert len((await client.list_resource_templates()).resource_templates) > len(names)
        assert (await refusal(client, f"execution://{uuid.uuid4()}")).code == NOT_FOUND[era]


async def test_a_token_of_a_toolset_sees_nothing_else(connect, workflows, era):
    def make_bound_token() -> str:
        toolset = Toolset.objects.create(slug="people", title="People")
        toolset.picked.add(workflows[2])
        return create_token(name="bound", toolset=toolset)[1]

    bound = await in_database(make_bound_token)()
    async with connect(as_token=bound, mode=era) as client:
        resources = (await client.list_resources()).resources
        listed = await read(client, "workflow://list")
        refused = await refusal(client, "workflow://metadata/balance")
    assert [resource.name for resource in resources] == ["workflow_list", "holidays"]
    assert listed["workflows"] == ["holidays"]
    assert refused.code == NOT_FOUND[era]


async def test_clients_may_keep_what_they_read_for_themselves_only(mcp_server, token, workflows, settings):
    """2026-07-28 demands it of every such result."""
    settings.CATALOGUE = settings.CATALOGUE | {"list_ttl": 12.5}
    wanted: tuple[tuple[str, dict[str, Any]], ...] = (
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "workflow://list"}),
        ("prompts/list", {}),
    )
    for method, params in wanted:
        body, headers = modern(method, header=params.get("uri"), **params)
        answer = await in_thread(lambda: mcp_server.post(body, token=token, headers=headers))  # noqa: B023
        result = answer.json()["result"]
        assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (12500, "private", "complete")


def test_the_number_of_queries_does_not_grow_with_the_catalogue():
    """Neither for the list nor for one workflow; the executions of completion are one query, too."""
    access = Access.of_local_user()

    def count_queries() -> list[int]:
        counts = []
        for uri in ("workflow://list", "workflow://list?tags=a", "workflow://metadata/workflow_a"):
            kind, variables = find_kind(uri)
            forget_catalogue()
            forget_outages()
            with CaptureQueriesContext(connection) as captured:
                kind.read(Reading(access, uri, variables))
                for suggest in kind.suggestions.values():
                    list(suggest(access, ""))
            counts.append(len(captured))
        return counts

    make_workflow(name="workflow_a", tags=["a"])
    few = count_queries()
    for _ in range(3):
        make_workflows(10, make_source(health_state=Source.HealthState.FAILING), tags=["a"])
    assert count_queries() == few


async def test_both_eras_hear_of_resources_prompts_and_completion(mcp_server, token, connect):
    discovered = await in_thread(lambda: send(mcp_server, token, "server/discover"))
    async with connect(mode="legacy") as client:
        shaken_hands = client.server_capabilities.model_dump(exclude_none=True)
    for capabilities in (discovered.json()["result"]["capabilities"], shaken_hands):
        assert {"tools", "resources", "prompts", "completions"} <= capabilities.keys()
