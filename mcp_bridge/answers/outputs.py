"""A run's output as text, and no more of it at once than a model's context can take.

What is longer than `CATALOGUE_INLINE_RESULT_CHARACTERS` is told by its beginning and its size; the rest is
read part by part, from `get_execution_status` or from the resource `execution://{id}/result`.
"""

import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from catalogue.models import Workflow
from executions.models import Execution

BEGINNING = 2_000
"""Characters of a large output that are shown unasked."""


class NoSuchPart(Exception):
    """The output has no such place; the message says where it ends."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an output's text, which counts in characters."""

    text: str
    offset: int
    total: int

    @property
    def end(self) -> int:
        return self.offset + len(self.text)

    @property
    def next_offset(self) -> int | None:
        """Where the next part begins; None after the last one."""
        return self.end if self.end < self.total else None

    @property
    def is_whole(self) -> bool:
        return len(self.text) == self.total


def write_output(output: Any) -> str:
    """A text as it is, everything else as JSON."""
    # Without indentation, which costs a model tokens and, of large outputs, us seconds.
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def fits_inline(text: str) -> bool:
    return len(text) <= settings.CATALOGUE["inline_result_characters"]


def take_part(text: str, *, offset: int = 0) -> Part:
    """As much as one answer carries. Raises NoSuchPart for an offset behind the end."""
    if offset and offset >= len(text):
        raise NoSuchPart(f"There is nothing at {offset:,}: the output has {len(text):,} characters.")
    return Part(text[offset : offset + settings.CATALOGUE["inline_result_characters"]], offset, len(text))


def media_type(output: Any) -> str:
    return "text/plain" if isinstance(output, str) else "application/json"


def result_address(execution: Execution, *, offset: int = 0) -> str:
    """The resource that holds the output, or its part from `offset` on."""
    return f"execution://{execution.pk}/result" + (f"?offset={offset}" if offset else "")


def promises_output(workflow: Workflow) -> bool:
    """Whether the workflow's tool has an output schema. Only synchronous ones can: others may answer with a
    handle, which breaks it."""
    is_synchronous = workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    return is_synchronous and workflow.promised_output_schema is not None


def has_structure(execution: Execution) -> bool:
    """Whether the output is data, and not just what engines that answer with blocks repeat of their texts.

    Only where the workflow promises an output can such a text be meant as one.
    """
    output, workflow = execution.payload.output, execution.workflow
    if execution.payload.content is None or (output is not None and not isinstance(output, str)):
        return True
    return output is not None and workflow is not None and workflow.output_schema is not None


def why_no_output(execution: Execution) -> str:
    """Why a completed run has nothing to show; empty where it has something."""
    if execution.payload_pruned_at is not None:
        return (
            f"The run completed, but its output is kept no longer: the retention removed it on "
            f"{execution.payload_pruned_at:%Y-%m-%d}. Call the tool again if the result is still needed."
        )
    is_nothing_left = execution.payload.output is None and execution.payload.content is None
    if is_nothing_left and what_was_cut(execution):
        return "The run completed, but its output was too large to keep."
    return ""


def what_was_cut(execution: Execution) -> str:
    """In a sentence, what of a result was too large to keep; empty where all of it is there."""
    told = {"output": "structured content", "content": "content blocks"}
    cut = {entry["payload"]: entry["bytes"] for entry in execution.payload.cut}
    lost = [f"{words} ({cut[name]:,} bytes)" for name, words in told.items() if name in cut]
    return f"Too large to keep, and so missing here: its {' and its '.join(lost)}." if lost else ""
