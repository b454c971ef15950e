"""What is taken for a proposal, and what is sent back (C4.3, C4.4, C4.5)."""

import json
import time

import jsonschema_rs
import pytest

from connectors.http_tools.tool import HTTPRequestSpec
from orchestration.guard import Proposal, UnreadableProposal, proposal_schema, read_proposal
from tests.engines.model_answers import fenced, proposes, wordy

PROPOSED = proposes("get_order", {"order_id": "A-7"}, reason="They ask for one order.")
MEANT = Proposal(tool="get_order", reason="They ask for one order.", arguments={"order_id": "A-7"})
REQUEST = {"method": "GET", "url": "https://shop.example/orders/A-7"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(PROPOSED),
        f"\ufeff\n {json.dumps(PROPOSED, indent=4)}\n",
        fenced(PROPOSED),
        f"```\n{json.dumps(PROPOSED)}\n```",
        wordy(PROPOSED),
        f"Hm, {{this}} or {{that}}? {json.dumps(PROPOSED)}",
        f"{fenced(PROPOSED)}\nOnce more: {json.dumps(PROPOSED)}",
        json.dumps([PROPOSED]),
        json.dumps(PROPOSED | {"confidence": 0.9}),
        json.dumps(PROPOSED | {"arguments": '{"order_id": "A-7"}'}),
        json.dumps({"tool": "get_order", "reason": PROPOSED["reason"], "parameters": PROPOSED["arguments"]}),
        json.dumps(PROPOSED | {"http_request": None}),
        json.dumps(PROPOSED | {"http_request": {"method": None, "url": None}}),
    ],
    ids=[
        "plain", "indented", "fence", "bare fence", "words", "braces in words", "twice the same", "list",
        "more members", "text as arguments", "parameters", "no request", "empty request",
    ],
)  # fmt: skip
def test_wrapping_does_not_matter(text):
    """C4.3, C4.4."""
    assert read_proposal(text) == MEANT


def test_a_request_is_checked_by_the_one_model_of_requests():
    """C4.4, C4.5, C9."""
    written = {"method": "post", "url": "https://shop.example/orders", "headers": None, "body": {"a": [1]}}
    proposal = read_proposal(json.dumps(PROPOSED | {"http_request": written}))
    assert proposal.http_request == HTTPRequestSpec(
        method="POST", url="https://shop.example/orders", body={"a": [1]}
    )


def test_an_object_in_the_query_of_a_request_is_left_to_the_comparison():
    query = {"filter": {"state": "open"}, "sort": [{"by": "age"}], "ids": [1, 2]}
    proposal = read_proposal(json.dumps(PROPOSED | {"http_request": REQUEST | {"query_params": query}}))
    assert proposal.http_request is not None
    assert proposal.http_request.query_params == {
        "filter": '{"state":"open"}',
        "sort": '[{"by":"age"}]',
        "ids": [1, 2],
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tool": 5}, '"tool"'),
        ({"tool": ["get_order"]}, '"tool"'),
        ({"arguments": ["A-7"]}, '"arguments"'),
        ({"arguments": "A-7"}, '"arguments"'),
        ({"reason": {"a": 1}}, '"reason"'),
        ({"http_request": "GET /"}, '"http_request"'),
        ({"http_request": REQUEST | {"method": "TRACE"}}, '"http_request.method"'),
        ({"http_request": REQUEST | {"url": ""}}, '"http_request.url"'),
        ({"http_request": REQUEST | {"headers": {"X-A": 1}}}, '"http_request.headers.X-A"'),
        ({"http_request": REQUEST | {"auth": "Bearer x"}}, '"http_request.auth"'),
        ({"http_request": {"method": "GET"}}, '"http_request.url"'),
    ],
)
def test_what_has_another_shape_is_sent_back_with_the_place(changes, told):
    """C4.5."""
    with pytest.raises(UnreadableProposal, match=told):
        read_proposal(json.dumps(PROPOSED | changes))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no complete JSON object"),
        ("I would call get_order.", "no complete JSON object"),
        (json.dumps(PROPOSED)[:-5], "no complete JSON object"),
        ('{"tool": "a", "arguments": {"tool": "b"},}', "no complete JSON object"),
        ('{"tool": "a", "arguments": {"x": NaN}}', "no complete JSON object"),
        ('{"name": "get_order"}', 'has no "tool"'),
        (f"{json.dumps(PROPOSED)} or {json.dumps(PROPOSED | {'tool': 'b'})}", "more than one"),
        (json.dumps([PROPOSED, PROPOSED | {"arguments": {}}]), "more than one"),
        ("x" * 100_001, "longer than"),
    ],
    ids=["empty", "words", "cut", "broken", "nan", "no tool", "two", "list of two", "long"],
)
def test_what_is_not_one_proposal_is_sent_back(text, told):
    """C4.4: nothing inside of what is broken passes for a proposal."""
    with pytest.raises(UnreadableProposal, match=told):
        read_proposal(text)


@pytest.mark.parametrize("tool", [None, ""])
def test_no_tool_is_a_proposal_too(tool):
    """C4.2: with the reason."""
    proposal = read_proposal(json.dumps({"tool": tool, "reason": "Which order?", "arguments": None}))
    assert proposal == Proposal(tool=None, reason="Which order?")


def test_a_long_reason_is_cut_and_refuses_nothing():
    assert len(read_proposal(json.dumps(PROPOSED | {"reason": "x" * 5000})).reason) == 2000


@pytest.mark.parametrize(
    "text",
    ['{"a":' * 20_000, '{"' + '\\"' * 49_000, "[" * 99_000, '{"tool": ' + "[" * 50_000 + "]" * 50_000 + "}"],
    ids=["nested", "escapes", "brackets", "deep"],
)
def test_hostile_shapes_cost_next_to_nothing(text):
    started = time.process_time()
    with pytest.raises(UnreadableProposal):
        read_proposal(text)
    assert time.process_time() - started < 1


def test_values_are_not_quoted_in_objections():
    """C4.5: they may be long, or none of the reader's business."""
    with pytest.raises(UnreadableProposal) as raised:
        read_proposal(json.dumps(PROPOSED | {"http_request": REQUEST | {"method": "very-private"}}))
    assert "very-private" not in str(raised.value)


def test_the_schema_holds_servers_to_the_tools_names_and_lets_the_reason_come_first():
    """C4.2, C4.4."""
    schema = proposal_schema(["get_order", "list_orders"])
    is_valid = jsonschema_rs.validator_for(schema).is_valid
    assert is_valid(PROPOSED)
    assert is_valid(PROPOSED | {"http_request": REQUEST | {"body": None}})
    assert is_valid(proposes(None))
    assert not is_valid(proposes("drop_orders"))
    assert not is_valid({"tool": "get_order"})
    assert next(iter(schema["properties"])) == "reason"
