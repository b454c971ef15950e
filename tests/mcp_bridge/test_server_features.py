"""Prompts, resources and templates of an MCP server behind the product, through the product's own door."""

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from catalogue.access import Bounds, Scope
from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.exposure import current_catalogue, forget_catalogue
from catalogue.features import switch_features
from catalogue.history import command
from catalogue.models import Revision, ServerFeature, Source, Workflow
from connectors.testing import free_port
from mcp_bridge.prompts import offered_prompts
from mcp_bridge.resources import what_shows
from mcp_bridge.tokens import create_token
from tests.engines import hostile_servers as servers
from tests.engines.hostile_servers import hostile, server
from tests.engines.library_server import ICON, LARGE, PNG
from tests.factories import NOWHERE, make_feature, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import PROMPTS, RESOURCES, listening
from tests.processes import _wait_until_it_answers, guarded

TEMPLATE = "library://books/{number}"


@pytest.fixture(scope="module", params=["2025", "2026"])
def library_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; of either era."""
    log, port = tmp_path_factory.mktemp("library") / "log", free_port()
    command = [
        sys.executable,
        "-m",
        "tests.engines.library_server",
        f"--port={port}",
        f"--era={request.param}",
    ]
    with guarded(command, log=log) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/healthz", log)
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture
def library(library_server: str) -> Source:
    """Discovered, with nothing enabled."""
    return connect_source("library", library_server)


def connect_source(name: str, address: str, **config: Any) -> Source:
    source = Source.objects.create(name=name, kind="mcp", config={"url": address} | config)
    assert refresh_source(source).outcome == "succeeded"
    return source


def expose(source: Source) -> None:
    enable_workflows(Workflow.objects.filter(source=source))
    for feature in source.features.filter(enabled=False):
        feature.enabled = True
        feature.save()


@pytest.fixture
def exposed(library: Source) -> Source:
    expose(library)
    return library


async def names(client: Client) -> list[str]:
    prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    resources = [one.uri for one in (await client.list_resources()).resources]
    templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
    return [one for one in prompts + resources + templates if not one.startswith(("workflow:", "execution:"))]


@pytest.mark.usefixtures("library")
async def test_nothing_of_a_server_is_served_before_a_curator_enables_it(connect, era):
    async with connect(mode=era) as client:
        assert await names(client) == []
        for refused in (
            client.get_prompt("summarise", {"book": "1"}),
            client.read_resource("library://rules"),
            client.read_resource("library://books/1"),
            client.complete(ResourceTemplateReference(uri=TEMPLATE), {"name": "number", "value": ""}),
        ):
            with pytest.raises(MCPError, match="Unknown"):
                await refused


@pytest.mark.usefixtures("exposed")
async def test_an_enabled_prompt_is_listed_and_rendered_by_its_server(open_client, era):
    async with open_client(mode=era) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        result = await client.get_prompt("summarise", {"book": "Emma", "style": "long"})
    shown = prompts["summarise"]
    assert (shown.title, shown.description) == ("Summarise a book", "Asks for a summary.")
    assert [(one.name, one.required) for one in shown.arguments or []] == [("book", True), ("style", False)]
    assert result.messages[0].content.text == "Summarise Emma, long."
    assert (result.messages[1].content.type, result.messages[1].content.data) == ("image", PNG)


@pytest.mark.usefixtures("exposed")
async def test_enabled_resources_are_listed_and_read(open_client, era):
    async with open_client(mode=era) as client:
        resources = {one.uri: one for one in (await client.list_resources()).resources}
        templates = (await client.list_resource_templates()).resource_templates
        (rules,) = (await client.read_resource("library://rules")).contents
        (cover,) = (await client.read_resource("library://cover.png")).contents
        (book,) = (await client.read_resource("library://books/a%20b")).contents
        (archive,) = (await client.read_resource("library://archive")).contents
    shown = resources["library://rules"]
    assert (shown.title, shown.description, shown.mime_type) == (
        "House rules",
        "What readers may do.",
        "text/plain",
    )
    assert (rules.uri, rules.text, rules.mime_type) == ("library://rules", "No shouting.", "text/plain")
    assert cover.blob == "iVBORw=="
    assert (book.uri, book.text) == ("library://books/a%20b", "With a space")
    assert len(archive.text) == LARGE
    (template,) = [one for one in templates if one.uri_template == TEMPLATE]
    assert (template.title, template.description) == ("A book", "One book by its number.")


async def test_icons_and_sizes_are_listed_as_the_server_lists_them(connect, exposed, era):
    def measure() -> None:
        rules = exposed.features.get(upstream_id="library://rules")
        ServerFeature.objects.filter(pk=rules.pk).update(definition=rules.definition | {"size": 12})
        Revision.bump()

    await in_database(measure)()
    async with connect(mode=era) as client:
        prompts = {one.name: one.icons for one in (await client.list_prompts()).prompts}
        resources = {one.uri: one for one in (await client.list_resources()).resources}
        templates = (await client.list_resource_templates()).resource_templates
    assert prompts["summarise"] == resources["library://rules"].icons == [ICON]
    assert [one.icons for one in templates if one.uri_template == TEMPLATE] == [[ICON]]
    assert resources["library://rules"].size == 12
    assert (resources["library://archive"].icons, resources["library://archive"].size) == (None, None)


@pytest.mark.usefixtures("exposed")
async def test_a_server_completes_the_arguments_of_its_prompts_and_templates(connect, era):
    prompt, template = PromptReference(name="summarise"), ResourceTemplateReference(uri=TEMPLATE)
    async with connect(mode=era) as client:
        style = await client.complete(prompt, {"name": "style", "value": "l"})
        given = await client.complete(
            prompt, {"name": "style", "value": ""}, context_arguments={"book": "Emma"}
        )
        number = await client.complete(template, {"name": "number", "value": "2"})
        with pytest.raises(MCPError, match=r"has no argument 'colour'\. Known: book, style"):
            await client.complete(prompt, {"name": "colour", "value": ""})
    assert style.completion.values == ["long"]
    assert given.completion.values == ["short on Emma"]
    assert (number.completion.values, number.completion.has_more) == (["2"], True)


@pytest.mark.usefixtures("exposed")
async def test_a_servers_refusal_says_whose_it_is(connect, era):
    async with connect(mode=era) as client:
        with pytest.raises(MCPError, match="library: The server refused prompts/get"):
            await client.get_prompt("burn")
        with pytest.raises(MCPError, match="library: ") as refused:
            await client.read_resource("library://books/404")
        with pytest.raises(MCPError, match="- book: it is required\n- 'colour': unknown argument") as wrong:
            await client.get_prompt("summarise", {"colour": "red"})
    assert refused.value.code in (-32602, -32603, -32002)
    assert wrong.value.code == -32602


BEYOND = [
    "library://books/..%2Frules",
    "library://books/%2e%2e",
    "library://books/1/2",
    "library://books/1?x=2",
    "library://books/1#x",
    "library://books/%00",
    "library://Rules",
    "library:rules",
    "http://169.254.169.254/latest",
    "file:///etc/passwd",
    "upstream://library/library://rules",
]


@pytest.mark.usefixtures("exposed")
async def test_an_address_beyond_what_is_exposed_never_reaches_the_server(connect, subtests):
    async with connect() as client:
        for uri in BEYOND:
            with subtests.test(uri), pytest.raises(MCPError, match="Unknown resource"):
                await client.read_resource(uri)


async def test_two_servers_with_the_same_names_are_told_apart(connect, exposed, library_server, era):
    await in_database(lambda: expose(connect_source("annex", library_server)))()
    async with connect(mode=era) as client:
        seen = await names(client)
        prompt = await client.get_prompt("summarise_annex", {"book": "Emma"})
        (rules,) = (await client.read_resource("upstream://annex/library://rules")).contents
        (book,) = (await client.read_resource("upstream://annex/library://books/1")).contents
        template = ResourceTemplateReference(uri=f"upstream://annex/{TEMPLATE}")
        number = await client.complete(template, {"name": "number", "value": "1"})
    assert len(seen) == len(set(seen)) == 12
    assert prompt.messages[0].content.text == "Summarise Emma, short."
    assert (rules.uri, rules.text) == ("upstream://annex/library://rules", "No shouting.")
    assert (book.uri, book.text) == ("upstream://annex/library://books/1", "Moby-Dick")
    assert number.completion.values == ["1"]


async def test_a_server_cannot_answer_at_an_address_of_anothers_template(
    connect, exposed, library_server, era
):
    """H9: whatever it is served as."""

    def take_over() -> None:
        expose(connect_source("annex", library_server))
        taken = ServerFeature.objects.filter(source__name="annex", upstream_id="library://rules")
        taken.update(served_as="library://books/1")
        Revision.bump()

    await in_database(take_over)()
    async with connect(mode=era) as client:
        (book,) = (await client.read_resource("library://books/1")).contents
    assert (book.uri, book.text) == ("library://books/1", "Moby-Dick")


async def test_who_may_not_call_tools_sees_no_prompts_and_resources(connect, exposed, era):
    reader = await in_database(lambda: create_token(name="reader", scopes=[Scope.READ])[1])()
    async with connect(mode=era, as_token=reader) as client:
        assert await names(client) == []
        for refused in (client.get_prompt("summarise", {}), client.read_resource("library://rules")):
            with pytest.raises(MCPError):
                await refused


async def test_a_toolset_has_what_comes_from_the_sources_of_its_tools(connect, exposed, era):
    lend = await in_database(Workflow.objects.get)(name="lend")
    other = await in_database(make_workflow)(name="other")
    await in_database(make_toolset)("lending", picked=[lend])
    await in_database(make_toolset)("else", picked=[other])
    async with connect(mode=era, toolset="lending") as client:
        assert len(await names(client)) == 6
        assert (await client.read_resource("library://rules")).contents[0].text == "No shouting."
    async with connect(mode=era, toolset="else") as client:
        assert await names(client) == []
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource("library://rules")


async def test_a_server_that_is_down_costs_its_own_reads_alone(connect, era):
    """The lists are the catalogue's."""
    config = {"url": f"{NOWHERE}/mcp"}
    source = await in_database(Source.objects.create)(name="gone", kind="mcp", config=config)
    await in_database(make_feature)(source, "greet")
    await in_database(make_feature)(source, "gone://1", kind="resource")
    async with connect(mode=era) as client:
        assert await names(client) == ["greet", "gone://1"]
        for refused in (client.get_prompt("greet"), client.read_resource("gone://1")):
            with pytest.raises(MCPError, match="gone: Could not connect") as error:
                await refused
            assert error.value.code == -32603
        assert (await client.read_resource("workflow://list")).contents


async def test_an_answer_that_is_too_large_is_refused_with_the_limit(connect, library_server):
    def connect_limited() -> None:
        expose(connect_source("library", library_server, max_response_bytes=100_000))

    await in_database(connect_limited)()
    async with connect() as client:
        with pytest.raises(MCPError, match="larger than 100,000 bytes"):
            await client.read_resource("library://archive")
        assert (await client.read_resource("library://rules")).contents[0].text == "No shouting."


async def test_a_prompt_of_a_workflow_has_its_name_to_itself(connect, exposed):
    await in_database(make_workflow)(name="summarise", offered_as_prompt=True)
    async with connect() as client:
        shown = [prompt.name for prompt in (await client.list_prompts()).prompts]
        text = (await client.get_prompt("summarise")).messages[0].content.text
    assert shown.count("summarise") == 1
    assert text.startswith("Run the workflow")


async def test_curators_words_and_names_are_what_clients_get(connect, exposed):
    def rename() -> None:
        prompt = ServerFeature.objects.get(upstream_id="summarise")
        prompt.served_as, prompt.title_override, prompt.description_override = "digest", "Digest", "Ours."
        prompt.full_clean()
        prompt.save()
        rules = ServerFeature.objects.get(upstream_id="library://rules")
        rules.served_as = "library://house-rules"
        rules.full_clean()
        rules.save()

    await in_database(rename)()
    async with connect() as client:
        (prompt,) = [one for one in (await client.list_prompts()).prompts if one.name == "digest"]
        text = (await client.get_prompt("digest", {"book": "Emma"})).messages[0].content.text
        (rules,) = (await client.read_resource("library://house-rules")).contents
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource("library://rules")
    assert (prompt.title, prompt.description, text) == ("Digest", "Ours.", "Summarise Emma, short.")
    assert (rules.uri, rules.text) == ("library://house-rules", "No shouting.")


@pytest.mark.usefixtures("exposed")
async def test_a_curators_change_is_told_for_the_list_that_it_concerns(mcp_server, token):
    def disable(upstream_id: str) -> None:
        features = ServerFeature.objects.filter(upstream_id=upstream_id)
        switch_features(features, enabled=False, by=command("test"))

    wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    async with listening(mcp_server, token, **wanted) as stream:
        await stream.honoured()
        await in_database(disable)("summarise")
        assert await stream.news() == PROMPTS
        await in_database(disable)(TEMPLATE)
        assert await stream.news() == RESOURCES
        await in_database(disable)("library://rules")
        assert await stream.news() == RESOURCES


@pytest.fixture
def many() -> Source:
    """120 of each kind, of a source without tools."""
    source = Source.objects.create(name="many", kind="mcp", config={"url": f"{NOWHERE}/mcp"})
    for number in range(120):
        make_feature(source, f"prompt-{number:03}")
        make_feature(source, f"many://{number:03}", kind="resource")
        make_feature(source, f"many://{number:03}/{{x}}", kind="template")
    return source


@pytest.mark.usefixtures("many")
async def test_long_lists_come_in_pages(connect, era, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"page_size": 50}
    async with connect(mode=era) as client:
        prompts = [
            name async for name in pages(client.list_prompts, lambda one: [p.name for p in one.prompts])
        ]
        resources = [
            name async for name in pages(client.list_resources, lambda one: [r.uri for r in one.resources])
        ]
        templates = [
            name
            async for name in pages(
                client.list_resource_templates, lambda one: [t.uri_template for t in one.resource_templates]
            )
        ]
    assert prompts == [f"prompt-{number:03}" for number in range(120)]
    assert [one for one in resources if one.startswith("many:")] == [f"many://{n:03}" for n in range(120)]
    assert [one for one in templates if one.startswith("many:")] == [
        f"many://{n:03}/{{x}}" for n in range(120)
    ]


async def pages(ask: Any, read: Any) -> AsyncIterator[str]:
    cursor, count = None, 0
    while cursor is not None or not count:
        page = await ask(cursor=cursor)
        cursor, count = page.next_cursor, count + 1
        assert len(read(page)) <= 50
        for name in read(page):
            yield name
    assert count > 2


def test_any_number_is_loaded_in_as_many_queries_and_listed_with_none(many):
    def load() -> tuple[int, int]:
        forget_catalogue()
        with CaptureQueriesContext(connection) as loading:
            catalogue = current_catalogue()
        with CaptureQueriesContext(connection) as listing:
            offered_prompts(catalogue, Bounds(), scopes=[Scope.RUN])
            what_shows(catalogue, Bounds(), scopes=list(Scope))
        return len(loading), len(listing)

    of_many = load()
    ServerFeature.objects.exclude(upstream_id="prompt-001").delete()
    assert load() == of_many
    assert of_many[1] == 0


@pytest.mark.usefixtures("exposed")
async def test_reads_count_against_the_rates_of_calls(connect):
    limited = await in_database(
        lambda: create_token(name="limited", calls_per_minute=1, calls_at_once=2)[1]
    )()
    async with connect(as_token=limited) as client:
        await client.read_resource("library://rules")
        await client.get_prompt("summarise", {"book": "Emma"})
        with pytest.raises(MCPError, match="Too many calls"):
            await client.read_resource("library://rules")


NOT_MCP = "gone wrong|not valid MCP|cannot be used|asks for input|no response within|larger than|MCP message"
KEY = "key-that-nobody-may-see-42"


@pytest.mark.parametrize(
    "answer",
    [
        servers.answers({"messages": "x", "contents": "x"}),
        servers.answers({"messages": [{"role": "root", "content": {}}], "contents": [{"uri": 7}]}),
        servers.answers([]),
        servers.answers(None),
        servers.answers({"resultType": "input_required", "inputRequests": {}}),
        servers.sends_raw(b'{"jsonrpc": "2.0", "id": 1, "res'),
        servers.sends_raw(b"[" * 100_000),
        servers.silence,
        servers.huge_body,
        servers.huge_event,
        lambda message, _: servers.error(message, f"It has gone wrong with {KEY}", code=-32603),
    ],
    ids=[
        "texts as lists", "a role that there is not", "a list", "null", "a question", "half a message",
        "brackets", "silence", "50 MB", "50 MB in an event", "our key in its words",
    ],
)  # fmt: skip
async def test_an_answer_that_cannot_be_used_is_an_error_in_words(connect, answer):
    with hostile(server(prompt=answer, resource=answer)) as engine:
        config = {
            "url": f"{engine.base_url}/mcp",
            "request_timeout_seconds": 0.3 if answer is servers.silence else 10,
            "max_response_bytes": 100_000,
        }
        source = Source(name="hostile", kind="mcp", config=config)
        source.credentials = {"bearer_token": KEY}
        await in_database(source.save)()
        await in_database(make_feature)(source, "greet")
        await in_database(make_feature)(source, "x://1", kind="resource")
        async with connect() as client:
            for refused in (client.get_prompt("greet"), client.read_resource("x://1")):
                with pytest.raises(MCPError, match=f"hostile: .*({NOT_MCP})") as error:
                    await refused
                assert KEY not in str(error.value)
            assert len(await names(client)) == 2
