"""The programs of docs/clients.md and docs/mcp.md do what they are for."""

import ast
import json
import re
from types import CodeType
from typing import Any

import pytest

from catalogue.models import Source
from executions.models import Execution
from mcp_bridge.tokens import create_token
from tests.factories import make_execution
from tests.mcp_bridge.conftest import Connect, McpServer
from tests.mcp_bridge.database import in_database
from tests.processes import ROOT


def program(page: str) -> str:
    (found,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL
    )
    return str(found)


async def run(program: str, names: dict[str, Any]) -> dict[str, Any]:
    code: CodeType = compile(program, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (awaitable := eval(code, names)) is not None:
        await awaitable
    return names


async def test_the_program_for_client_users_lists_the_tools_and_calls_one(
    mcp_server: McpServer, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    _, token = await in_database(create_token)(name="program")
    example = program("clients.md").replace("http://localhost:8000", mcp_server.base_url)
    names = await run(example, {"token": token})
    assert "countdown" in [tool.name for tool in names["tools"]]
    assert "'seconds': 0" in capsys.readouterr().out


async def test_the_loop_over_a_large_result_reads_all_of_it(connect: Connect) -> None:
    output = {"text": "word " * 60_000}

    def make() -> tuple[Execution, str]:
        token, text = create_token(name="program")
        return make_execution(payload={"output": output}, caller=f"token:{token.pk}"), text

    execution, text = await in_database(make)()
    async with connect(as_token=text) as client:
        names = await run(program("mcp.md"), {"client": client, "execution_id": str(execution.pk)})
    assert json.loads(names["text"]) == output
