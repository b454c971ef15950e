"""Putting instructions to the model, by the code that answers POST /workflow, and marking what it chose."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from access.callers import Caller
from catalogue.database import run_in_database
from catalogue.imports.tools import store_tools
from catalogue.models import Workflow
from dev.evaluation.instructions import Instruction, input_schemas, read_tools
from orchestration.guard import Proposal, UnreadableProposal, read_proposal
from orchestration.language_model import Message, MeteredModel, Reply
from orchestration.models import Failure, StageFailed
from orchestration.pipeline import choose_call
from orchestration.retrieval import find_tools


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What came of one instruction, asked once."""

    instruction: Instruction
    tool: str | None
    """The model's last choice, whether or not the guard let it through."""
    arguments: dict[str, Any] | None
    """None: the guard let nothing through."""
    failure: Failure | None
    """Why it let nothing through."""
    message: str
    """The product's sentence about that."""
    questions: int
    """How often the model was asked: once, or twice where the first answer was sent back."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    @property
    def approved(self) -> bool:
        """A request would have been sent."""
        return self.arguments is not None

    @property
    def right_tool(self) -> bool:
        if self.instruction.tool is None:
            return self.failure is Failure.NO_TOOL_FITS
        return self.tool == self.instruction.tool

    @property
    def right_arguments(self) -> bool:
        """Of the right tool, through the guard; nothing that has arguments is asked for without a tool."""
        if self.arguments is None or self.tool != self.instruction.tool:
            return False
        given = self._compared(self.arguments)
        return any(given == self._compared(right) for right in self.instruction.right_answers)

    @property
    def right(self) -> bool:
        """What was asked for would have been done, or rightly nothing."""
        return self.right_arguments or (self.instruction.tool is None and self.right_tool)

    @property
    def unasked(self) -> bool:
        """A request would have been sent that nobody asked for."""
        return self.approved and not self.right

    def _compared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        schema = input_schemas().get(self.tool or "", {})
        filled = _defaults(schema) | arguments
        return {name: value for name, value in filled.items() if name not in self.instruction.free}


EVALUATION = Caller(key="local:evaluation", name="evaluation")
NEVER_ASKED = frozenset({Failure.MODEL_UNAVAILABLE, Failure.MODEL_TIMEOUT})


class CannotRun(Exception):
    """The model cannot be asked at all; the message says why."""


class _Watched(MeteredModel):
    """Keeps what the model said."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.last_answer = ""

    async def ask(self, messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
        self.questions += 1
        reply = await super().ask(messages, schema=schema)
        self.last_answer = reply.text
        return reply

    @property
    def proposal(self) -> Proposal | None:
        """The last one, whatever the guard said to it."""
        try:
            return read_proposal(self.last_answer)
        except UnreadableProposal:
            return None


async def ask_all(instructions: Iterable[Instruction], *, repeat: int) -> AsyncIterator[Attempt]:
    """One after another, so that the times are those of a model with nothing else to do.

    Raises CannotRun where not even the first is answered.
    """
    tools = await run_in_database(_store_tools)
    answered = False
    for instruction in instructions:
        for _ in range(repeat):
            attempt = await ask_once(instruction, tools)
            if attempt.failure in NEVER_ASKED and not answered:
                raise CannotRun(attempt.message)
            answered = True
            yield attempt


async def ask_once(instruction: Instruction, tools: Mapping[str, Workflow]) -> Attempt:
    model, started = _Watched(), time.perf_counter()
    arguments, failure, message = None, None, ""
    try:
        selection = await choose_call(instruction.say, tools, model=model)
        arguments = selection.approved.arguments
    except StageFailed as failed:
        failure, message = failed.failure, failed.message
    proposal = model.proposal
    return Attempt(
        instruction=instruction,
        tool=proposal.tool if proposal else None,
        arguments=arguments,
        failure=failure,
        message=message,
        questions=model.questions,
        prompt_tokens=model.usage.prompt,
        completion_tokens=model.usage.completion,
        seconds=time.perf_counter() - started,
    )


def _store_tools() -> dict[str, Workflow]:
    """All twelve, as the model is told of them in every request."""
    stored = store_tools(read_tools(), expose=True)
    return find_tools([tool.tool_id for tool in stored.tools], caller=EVALUATION)


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: part["default"] for name, part in properties.items() if "default" in part}
