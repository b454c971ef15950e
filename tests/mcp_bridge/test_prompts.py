"""Workflows as commands of their own for people, through the official client, in both eras."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from mcp import Client, MCPError
from mcp_types import PromptReference

from catalogue.models import Toolset, Workflow
from mcp_bridge.tokens import create_token
from tests.factories import make_source, make_workflow
from tests.mcp_bridge.database import in_database

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "$defs": {"Period": {"enum": ["month", "year"], "description": "How long."}},
    "properties": {
        "note": {"type": "string", "description": "Goes on the cover."},
        "copies": {"type": "integer", "minimum": 1, "description": "How many."},
        "period": {"$ref": "#/$defs/Period"},
        "draft": {"type": "boolean"},
        "factor": {"type": ["number", "null"]},
        "layout": {"type": "object", "properties": {"columns": {"type": "integer"}}},
        "pages": {"type": "array", "items": {"type": "integer"}},
        "code": {"type": ["string", "integer"]},
        "anything": {},
    },
    "required": ["period", "copies"],
}
GIVEN = {"copies": "3", "period": "year"}


@pytest.fixture
def offered() -> Workflow:
    """A workflow that is a prompt, and one that is none."""
    source = make_source("books")
    make_workflow(source, name="unmarked")
    return make_workflow(
        source,
        name="report",
        title_override="Print the report",
        description="Prints it.",
        input_schema=SCHEMA,
        icons=[{"src": "https://example.com/report.png"}],
        offered_as_prompt=True,
    )


async def arguments_asked_for(client: Client, written: dict[str, str]) -> Any:
    """What the rendered message tells the model to send."""
    message = (await client.get_prompt("report", written)).messages[0]
    assert message.role == "user"
    return json.loads(message.content.text.split("```json\n")[1].removesuffix("\n```"))


async def refusal(client: Client, name: str, written: dict[str, str]) -> MCPError:
    with pytest.raises(MCPError) as refused:
        await client.get_prompt(name, written)
    assert refused.value.code == -32602
    return refused.value


async def test_only_marked_workflows_are_prompts(connect, offered, era):
    """With what a person needs to know of each argument; what has to be given comes first."""
    async with connect(mode=era) as client:
        (prompt,) = (await client.list_prompts()).prompts
    assert (prompt.name, prompt.title, prompt.description) == ("report", "Print the report", "Prints it.")
    assert [icon.src for icon in prompt.icons or []] == ["https://example.com/report.png"]
    shown = {argument.name: (argument.description, argument.required) for argument in prompt.arguments or []}
    assert list(shown)[:2] == ["copies", "period"]
    assert shown["copies"] == ("How many. (integer)", True)
    assert shown["period"] == ("How long.", True)
    assert shown["note"] == ("Goes on the cover.", False)
    assert shown["layout"] == ("(JSON object)", False)
    assert shown["anything"] == (None, False)


async def test_a_prompt_is_known_by_a_former_name_while_that_works(connect, offered, era):
    """And asks for the tool by its present one."""
    later = (timezone.now() + timedelta(days=1)).isoformat()
    ended = (timezone.now() - timedelta(days=1)).isoformat()
    aliases = {"summary": later, "digest": ended}
    await in_database(Workflow.objects.filter(pk=offered.pk).update)(tool_aliases=aliases)
    async with connect(mode=era) as client:
        text = (await client.get_prompt("summary", GIVEN)).messages[0].content.text
        assert "call the tool `report` with" in text
        reference = PromptReference(name="summary")
        completion = await client.complete(reference, {"name": "period", "value": "y"})
        assert completion.completion.values == ["year"]
        assert "Unknown prompt" in str(await refusal(client, "digest", GIVEN))


async def test_a_prompt_asks_to_call_the_workflows_tool(open_client, offered, era):
    """E8: over both transports; each text becomes a value of the schema's type."""
    written = GIVEN | {
        "note": "3",
        "draft": "true",
        "factor": "0.5",
        "layout": '{"columns": 2}',
        "pages": "[1, 2]",
        "code": "007",
        "anything": "[1]",
    }
    async with open_client(mode=era) as client:
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["report"]
        result = await client.get_prompt("report", written)
        sent = await arguments_asked_for(client, written)
    assert result.description == "Prints it."
    assert "call the tool `report`" in result.messages[0].content.text
    assert sent == {
        "copies": 3,
        "period": "year",
        "note": "3",
        "draft": True,
        "factor": 0.5,
        "layout": {"columns": 2},
        "pages": [1, 2],
        "code": "007",
        "anything": "[1]",
    }


async def test_a_field_that_a_form_leaves_empty_is_left_out(connect, offered):
    """Required ones stay, so that the schema decides."""
    written = GIVEN | {"note": "", "draft": "", "factor": "null"}
    async with connect() as client:
        assert await arguments_asked_for(client, written) == {"copies": 3, "period": "year", "factor": None}
        refused = await refusal(client, "report", GIVEN | {"copies": ""})
    assert "/copies" in refused.message


UNFIT = [
    ({}, ["/copies: required, but missing", "/period: required, but missing"]),
    (GIVEN | {"copies": "three"}, ["/copies"]),
    (GIVEN | {"copies": "0"}, ["/copies"]),
    (GIVEN | {"copies": "1.5"}, ["/copies"]),
    (GIVEN | {"factor": "Infinity"}, ["/factor"]),
    (GIVEN | {"factor": "NaN"}, ["/factor"]),
    (GIVEN | {"period": "decade"}, ["/period"]),
    (GIVEN | {"draft": "True"}, ["/draft"]),
    (GIVEN | {"layout": '{"columns": "two"}'}, ["/layout/columns"]),
    (GIVEN | {"layout": "[" * 100_000}, ["/layout"]),
    (GIVEN | {"pages": "1, 2"}, ["/pages"]),
    (GIVEN | {"colour": "red"}, ["/colour: no such argument"]),
]


async def test_what_does_not_fit_is_refused_by_name(connect, offered, era, subtests):
    async with connect(mode=era) as client:
        for written, named in UNFIT:
            with subtests.test(written=written):
                refused = await refusal(client, "report", written)
                assert all(name in refused.message for name in named)
                assert len(refused.message) < 2000


async def test_in_a_compact_toolset_the_prompt_asks_for_execute_workflow(connect, offered, era):
    """There the workflow has no tool of its own. Outside the toolset there are no prompts."""

    def make_bound_tokens() -> list[str]:
        compact = Toolset.objects.create(slug="compact", title="Compact", mode=Toolset.Mode.COMPACT)
        compact.picked.add(offered)
        others = Toolset.objects.create(slug="others", title="Others")
        return [create_token(name=toolset.slug, toolset=toolset)[1] for toolset in (compact, others)]

    compact, others = await in_database(make_bound_tokens)()
    async with connect(as_token=compact, mode=era) as client:
        message = (await client.get_prompt("report", GIVEN)).messages[0].content.text
        sent = await arguments_asked_for(client, GIVEN)
    assert "call the tool `execute_workflow`" in message
    assert sent == {"name": "report", "arguments": {"copies": 3, "period": "year"}}
    async with connect(as_token=others, mode=era) as client:
        assert (await client.list_prompts()).prompts == []
        assert "Unknown prompt: 'report'" in (await refusal(client, "report", GIVEN)).message


async def test_unknown_and_unmarked_prompts_are_refused_alike(connect, offered, era):
    async with connect(mode=era) as client:
        unmarked = await refusal(client, "unmarked", {})
        unknown = await refusal(client, "nothing", {})
        long = await refusal(client, "n" * 10_000, {})
    assert unmarked.message.replace("unmarked", "nothing") == unknown.message
    assert "prompts/list" in unknown.message
    assert len(long.message) < 300


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": True, "b": False, "c": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"n": {"$ref": "#"}}},
        {"type": "object", "anyOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"]}]},
    ],
)
async def test_odd_schemas_make_prompts_too(connect, schema):
    await in_database(make_workflow)(name="report", offered_as_prompt=True, input_schema=schema)
    async with connect() as client:
        (prompt,) = (await client.list_prompts()).prompts
    assert prompt.name == "report"
