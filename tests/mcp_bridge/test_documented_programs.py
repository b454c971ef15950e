"""The clients' programs on pages run."""

import ast
import asyncio
import re
from inspect import CO_COROUTINE
from types import CodeType

import pytest
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions.models import Execution
from mcp_bridge.tokens import create_token
from tests.docs.reading import GUIDES
from tests.executions.steps import advance_due_executions
from tests.factories import make_execution
from tests.mcp_bridge.database import in_database


def compiled(place: str, program: str) -> CodeType:
    return compile(program, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # type: ignore[no-any-return]


PROGRAMS = [
    (place, re.sub(r'("seconds": )\d+', r"\1 0.5", text))
    for page in GUIDES
    for place, text, language in page.blocks
    if language == "python" and compiled(place, text).co_flags & CO_COROUTINE
]


@pytest.mark.usefixtures("quick_news")
@pytest.mark.parametrize(("place", "program"), PROGRAMS)
async def test_a_program_of_a_page_runs(place, program, connect, mcp_server, source):
    """With a `client`, a `token`, and the `execution_id` of a large result; nobody waits for `countdown`."""

    def prepare() -> tuple[str, str]:
        Workflow.objects.filter(tool_name="countdown").update(inline_wait_seconds=0)
        forget_catalogue()
        row, token = create_token(name="program")
        result = make_execution(payload={"output": {"text": "word " * 60_000}}, caller=f"token:{row.pk}")
        return token, str(result.pk)

    def work() -> None:
        Execution.objects.update(next_attempt_at=timezone.now())
        advance_due_executions()

    token, execution_id = await in_database(prepare)()
    async with connect(as_token=token) as client:
        names = {"client": client, "token": token, "execution_id": execution_id}
        code = compiled(place, program.replace("http://localhost:8000", mcp_server.base_url))
        running = asyncio.ensure_future(eval(code, names))
        while not running.done():
            await in_database(work)()
            await asyncio.sleep(0.05)
        await running
    assert not getattr(names.get("result"), "is_error", False), f"{place}: {names['result']}"
