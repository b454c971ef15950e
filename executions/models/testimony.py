"""What somebody says of a run in place of an engine that keeps none."""

import json
from typing import Any

from executions.models.payload import SAID_BY

Block = dict[str, Any]
"""An MCP content block."""


def testify(tool_name: str, output: Any, metadata: dict[str, Any], *, by: str) -> tuple[str, dict[str, Any]]:
    """What the timeline says, and what the payload becomes. `output` None: it is not known."""
    said = metadata | {SAID_BY: by}
    if output is None:
        told = (
            f"{tool_name} ran, says {by}, who looked; but its output is not known. "
            "Calling it again would run it once more."
        )
        event = f"{by}: it ran. Its output is not known."
        return event, {"output": None, "content": [_text(told)], "metadata": said}
    told = f"{tool_name} ran, says {by}, who looked; and this is what {by} says that its output was:"
    written = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    event = f"{by}: it ran. The output is what {by} says that it was."
    return event, {"output": output, "content": [_text(told), _text(written)], "metadata": said}


def _text(words: str) -> Block:
    return {"type": "text", "text": words}
