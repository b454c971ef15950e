"""`--toolset` at the command line."""

import json
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from mcp_bridge.bearers import authenticate
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.factories import make_toolset, make_workflow


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def listed(*arguments: str) -> list[str]:
    return [tool["name"] for tool in json.loads(run("list_tools", "--json", *arguments))]


def test_the_tools_of_a_toolset_are_listed():
    """A4.2"""
    make_workflow(name="a")
    make_workflow(name="b")
    make_toolset("part", rules=["a"])
    make_toolset("small", rules=["a"], mode="compact")
    assert [name for name in listed("--toolset", "part") if name not in BUILT_IN_TOOLS] == ["a"]
    assert not set(listed("--toolset", "small")) - set(BUILT_IN_TOOLS)
    assert {"a", "b"} <= set(listed())


def test_the_list_ends_with_what_it_costs():
    """D5: and whether that is within the budget."""
    make_workflow(name="a", description="x" * 9000)
    make_toolset("tight", rules=["a"], token_budget=2500)
    whole = run("list_tools").splitlines()[-1]
    tight = run("list_tools", "--toolset", "tight").splitlines()[-1]
    assert re.fullmatch(r"\d+ tools, [\d,]+ characters, about [\d,]+ tokens\.", whole)
    assert tight.startswith(whole)
    assert re.search(r"of 2,500 tokens: \d+ % over; switch it to compact mode or remove workflows$", tight)


def test_a_tool_is_called_as_from_within_the_toolset():
    """A4.2: built-in tools see what it shows, and nothing else can be called."""
    make_workflow(name="a")
    make_workflow(name="b")
    make_toolset("part", rules=["a"])
    document = json.loads(run("call_tool", "list_workflows", "{}", "--toolset", "part"))
    assert [workflow["name"] for workflow in document["workflows"]] == ["a"]
    with pytest.raises(CommandError, match="Unknown or disabled tool"):
        run("call_tool", "b", "{}", "--toolset", "part")


@pytest.mark.parametrize(
    "command", [["list_tools"], ["call_tool", "list_workflows"], ["mcp_stdio"], ["create_mcp_token", "x"]]
)
def test_an_unknown_toolset_is_refused_with_those_that_there_are(command):
    """B4"""
    with pytest.raises(CommandError, match=r"There is no toolset nope\. The toolsets are: none\."):
        run(*command, "--toolset", "nope")
    make_toolset("finance")
    make_toolset("off", enabled=False)
    with pytest.raises(CommandError, match=r"There is no toolset nope\. The toolsets are: finance, off\."):
        run(*command, "--toolset", "nope")


@pytest.mark.parametrize("command", [["list_tools"], ["call_tool", "list_workflows"], ["mcp_stdio"]])
def test_a_switched_off_toolset_is_not_served(command):
    """A4.4"""
    make_toolset("off", enabled=False)
    with pytest.raises(CommandError, match="The toolset off is disabled"):
        run(*command, "--toolset", "off")


def test_a_token_is_bound_to_a_toolset():
    """A4.2"""
    make_toolset("finance")
    token = authenticate(run("create_mcp_token", "accounting", "--toolset", "finance").strip())
    assert token is not None and token.caller.toolset == "finance"


def test_an_administrators_token_is_not_bound():
    """B8: its scope sees everything."""
    make_toolset("finance")
    with pytest.raises(CommandError, match="cannot be bound to a toolset"):
        run("create_mcp_token", "root", "--scope", "catalogue:admin", "--toolset", "finance")
