"""docs/MIGRATION.md against the product: every call in it works and returns the answer below it."""

import json
import re
from pathlib import Path
from typing import Any

from tests.factories import make_workflow
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.processes import ROOT

EXAMPLE = re.compile(r"^```json (before|after|answer)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCHEMA = {
    "type": "object",
    "properties": {
        "company": {"type": "string", "description": "Four letters."},
        "dry_run": {"type": "boolean", "default": False},
    },
    "required": ["company"],
}


def examples() -> list[tuple[str, Any]]:
    text = Path(ROOT, "docs", "MIGRATION.md").read_text(encoding="utf-8")
    found = [(kind, json.loads(body)) for kind, body in EXAMPLE.findall(text)]
    assert len(found) == text.count("```json")
    return found


async def test_every_example_of_the_guide_holds(connect: Connect, transactional_db: None):
    """D9: what stands after `before` means the same as it, and an answer is that of the call above it."""
    await in_database(make_workflow)(
        name="close_month",
        description="Closes the ledger of one company for a month.",
        tags=["finance"],
        input_schema=SCHEMA,
    )
    compared, last = 0, None
    async with connect() as client:
        for number, (kind, example) in enumerate(examples()):
            if kind == "answer":
                answer = example
            else:
                result = await client.call_tool(example["name"], example["arguments"])
                assert not result.is_error, result.content[0].text
                answer = result.structured_content
            if kind == "answer" or (number and examples()[number - 1][0] == "before"):
                assert answer == last
                compared += 1
            last = answer
    assert compared == 4


def test_the_guide_is_where_the_warning_sends_its_reader():
    """D9, D4"""
    from mcp_bridge.builtin_tools import DEPRECATED

    (path,) = re.findall(r"docs/\S+\.md", DEPRECATED)
    assert "1.0.0" in DEPRECATED
    assert "1.0.0" in Path(ROOT, path).read_text(encoding="utf-8")
