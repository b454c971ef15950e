"""What clients can offer people to fill in, through the official client, in both eras."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone
from mcp import Client, MCPError
from mcp_types import Completion, PromptReference, ResourceTemplateReference

from access.callers import Scope
from catalogue.models import Toolset, Workflow
from executions.models import State
from identity.tokens import create_token
from tests.factories import make_execution, make_source, make_workflow, make_workflows
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import owned

METADATA, LIST = "workflow://metadata/{name}", "workflow://list{?tags}"
EXECUTION, RESULT = "execution://{id}", "execution://{id}/result{?offset,query}"


@pytest.fixture
def workflows() -> list[Workflow]:
    source = make_source("books")
    return [
        make_workflow(source, name="balance", tags=["finance", "monthly"]),
        make_workflow(source, name="Bank_transfer", tags=["finance", "bank, foreign"]),
        make_workflow(source, name="all_banks", tags=["people"]),
        make_workflow(source, name="hidden_bank", enabled=False, tags=["finished"]),
    ]


async def complete(client: Client, template: str, typed: str, *, argument: str = "") -> Completion:
    """The completion of the template's only argument unless another one is named."""
    name = argument or template.partition("{")[2].strip("?").partition("}")[0].lstrip("?")
    reference = ResourceTemplateReference(uri=template)
    return (await client.complete(reference, {"name": name, "value": typed})).completion


COMPLETED_NAMES = [
    ("", ["Bank_transfer", "all_banks", "balance"]),
    ("BA", ["Bank_transfer", "balance", "all_banks"]),
    ("bank", ["Bank_transfer", "all_banks"]),
    ("lance", ["balance"]),
    ("x" * 10_000, []),
]


async def test_names_are_completed_from_their_beginning_and_then_from_within(
    connect, workflows, era, subtests
):
    """D8: only of workflows that the caller sees."""
    async with connect(mode=era) as client:
        for typed, values in COMPLETED_NAMES:
            with subtests.test(typed=typed):
                completion = await complete(client, METADATA, typed)
                assert completion.values == values
                assert (completion.total, completion.has_more) == (len(values), False)


async def test_former_names_that_still_work_are_completed_for_who_types_them(connect, workflows):
    later = (timezone.now() + timedelta(days=1)).isoformat()
    await in_database(Workflow.objects.filter(name="balance").update)(tool_aliases={"sheet": later})
    async with connect() as client:
        assert (await complete(client, METADATA, "sh")).values == ["sheet"]
        assert "sheet" not in (await complete(client, METADATA, "")).values


async def test_over_stdio_names_are_completed_as_well(open_client, workflows, era):
    """E8"""
    async with open_client(mode=era) as client:
        assert (await complete(client, "workflow://schema/{name}", "al")).values == ["all_banks", "balance"]


async def test_at_most_a_hundred_values_are_given_and_the_rest_is_counted(connect):
    await in_database(make_workflows)(103)
    async with connect() as client:
        completion = await complete(client, METADATA, "workflow")
    assert (len(completion.values), completion.total, completion.has_more) == (100, 103, True)


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("", ["finance", "monthly", "people"]),
        ("F", ["finance"]),
        ("finance,", ["finance,monthly"]),
        ("finance,mon", ["finance,monthly"]),
        ("people,", []),
        ("FINANCE,", ["FINANCE,monthly"]),
    ],
)
async def test_tags_are_completed_one_after_another(connect, workflows, typed, values):
    """D3: only tags that narrow the list to something; one with a comma cannot be written there."""
    async with connect() as client:
        assert (await complete(client, LIST, typed)).values == values


async def test_ids_are_those_of_the_callers_newest_executions(connect, era):
    def make_executions() -> list[str]:
        workflow, now = make_workflow(), timezone.now()
        make_execution(workflow, caller="token:0")
        old = owned(workflow, created_at=now - timedelta(hours=1))
        failed = owned(workflow, state=State.FAILED, created_at=now)
        return [str(failed.pk), str(old.pk)]

    failed, old = await in_database(make_executions)()
    async with connect(mode=era) as client:
        assert (await complete(client, EXECUTION, "")).values == [failed, old]
        assert (await complete(client, EXECUTION, old[:13])).values == [old]
        assert (await complete(client, EXECUTION, str(uuid.uuid4()))).values == []
        assert (await complete(client, RESULT, "", argument="id")).values == [old]
        assert (await complete(client, RESULT, "1", argument="offset")).values == []


async def test_values_that_a_schema_counts_up_are_offered_for_prompts(connect, era):
    schema = {
        "type": "object",
        "$defs": {"Period": {"enum": ["month", "year", "my own"]}},
        "properties": {
            "period": {"$ref": "#/$defs/Period"},
            "size": {"enum": [1, 10, None, {"a": 1}]},
            "draft": {"type": "boolean"},
            "kind": {"const": "A4"},
            "note": {"type": "string"},
            "odd": True,
        },
    }
    await in_database(make_workflow)(name="report", offered_as_prompt=True, input_schema=schema)
    await in_database(make_workflow)(name="unmarked", input_schema=schema)
    expected = {
        ("period", "m"): ["month", "my own"],
        ("size", "1"): ["1", "10", '{"a": 1}'],
        ("draft", ""): ["true", "false"],
        ("kind", "a"): ["A4"],
        ("note", ""): [],
        ("odd", ""): [],
    }
    async with connect(mode=era) as client:
        for (name, typed), values in expected.items():
            answer = await client.complete(PromptReference(name="report"), {"name": name, "value": typed})
            assert answer.completion.values == values, name
        for prompt, name in (("unmarked", "period"), ("report", "colour"), ("n" * 10_000, "period")):
            with pytest.raises(MCPError, match=r"Unknown prompt|no argument 'colour'") as refused:
                await client.complete(PromptReference(name=prompt), {"name": name, "value": ""})
            assert refused.value.code == -32602


NOT_COMPLETED = [
    ("workflow://metadata/balance", "name"),
    ("workflow://{name}", "name"),
    ("t" * 10_000, "name"),
    (METADATA, "id"),
    (METADATA, "n" * 10_000),
    (EXECUTION, "offset"),
]


async def test_what_cannot_be_completed_is_refused_with_what_can(connect, workflows, era, subtests):
    async with connect(mode=era) as client:
        for template, argument in NOT_COMPLETED:
            with subtests.test(template=template, argument=argument):
                with pytest.raises(MCPError, match=r"The templates are workflow://list|Known: ") as refused:
                    await complete(client, template, "", argument=argument)
                assert refused.value.code == -32602
                assert len(refused.value.message) < 500


async def test_scopes_and_toolsets_bound_what_is_offered(connect, workflows, era):
    def make_tokens() -> list[str]:
        toolset = Toolset.objects.create(slug="people", title="People")
        toolset.picked.add(workflows[2])
        bound = create_token(name="bound", toolset=toolset)[1]
        return [bound, create_token(name="runner", scopes=[Scope.RUN])[1]]

    bound, runner = await in_database(make_tokens)()
    async with connect(as_token=bound, mode=era) as client:
        assert (await complete(client, METADATA, "")).values == ["all_banks"]
        assert (await complete(client, LIST, "")).values == ["people"]
    async with connect(as_token=runner, mode=era) as client:
        assert (await complete(client, METADATA, "")).values == []
        assert (await complete(client, LIST, "")).values == []
