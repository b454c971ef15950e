"""docs/http-tools.md: every example in it is true."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from connectors.http_tools.connector import HttpConnector
from connectors.http_tools.tool import ApiConfig, ArgumentPlace, Authentication, FieldMappings, ToolConfig
from connectors.testing import closing
from tests.connectors.declared_tools import API, connector_of, workflow_of
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_api import Arrived, Reply, TargetApi, running_target_api

GUIDE = (Path(__file__).parents[2] / "docs" / "http-tools.md").read_text()
EXAMPLE = re.compile(
    r"```json\n(?P<tool>.*?)```\n\nCalled with\n\n```json\n(?P<arguments>.*?)```\n\n"
    r"it sends\n\n```http\n(?P<sent>.*?)```",
    re.DOTALL,
)
EXAMPLES = [found.groupdict() for found in EXAMPLE.finditer(GUIDE)]


@pytest.fixture
def api() -> Iterator[TargetApi]:
    answer = Reply(200, {"payment": {"id": "p1", "state": "new"}})
    with running_target_api(answer=lambda api, request: answer) as api, http_tool_hosts("127.0.0.1"):
        yield api


def test_the_guide_has_examples() -> None:
    """C1.4."""
    assert len(EXAMPLES) == GUIDE.count("```json") / 2 == GUIDE.count("```http") == 2


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: json.loads(example["tool"])["name"])
async def test_what_the_guide_says_is_sent_is_sent(api: TargetApi, example: dict[str, str]) -> None:
    """C1.4, C5.1: byte for byte in the address, header by header, and the body's meaning."""
    declared = ToolConfig.model_validate_json(example["tool"].replace(API, api.base_url))
    key = uuid4()
    async with closing(connector_of(declared)) as connector:
        assert isinstance(connector, HttpConnector)
        await connector.start(workflow_of(declared), json.loads(example["arguments"]), key=key)
    head, _, body = example["sent"].replace("<the execution's id>", str(key)).strip().partition("\n\n")
    request_line, *headers = head.splitlines()
    assert f"{api.last.method} {api.last.target}" == request_line
    for name, value in (header.split(": ") for header in headers):
        assert api.last.header(name) == value
    is_text = (api.last.header("content-type") or "").startswith("text/")
    assert (api.last.body.decode() if is_text else _meaning(api.last)) == (
        body if is_text else _meaning_of(body)
    )


def _meaning(arrived: Arrived) -> Any:
    if arrived.header("content-type") == "application/json":
        return arrived.json
    return [f"{name}={value}" for name, value in arrived.form]


def _meaning_of(body: str) -> Any:
    return json.loads(body) if body.startswith("{") else list(filter(None, body.split("&")))


@pytest.mark.parametrize("model", [ToolConfig, ApiConfig, FieldMappings, ArgumentPlace])
def test_the_guide_names_every_field(model: type[Any]) -> None:
    """C1.4."""
    aliases = {"place": "in"}
    for name in model.model_fields:
        assert re.search(rf"[`.\"]{aliases.get(name, name)}[`\".]", GUIDE), name


def test_the_guide_names_every_kind_of_authentication_with_its_fields() -> None:
    """C1.4."""
    kinds = Authentication.__origin__.__args__  # type: ignore[attr-defined]
    for kind in kinds:
        for name, field in kind.model_fields.items():
            said = field.annotation.__args__[0] if name == "type" else {"where": "in"}.get(name, name)
            assert f"`{said}`" in GUIDE, (kind, name)
