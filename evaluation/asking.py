"""Putting instructions to the model, by the code that answers POST /workflow."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from catalogue.database import run_in_database
from catalogue.http_tools.registry import store_tools
from catalogue.models import Workflow
from evaluation.instructions import Instruction, read_tools
from evaluation.marking import Attempt
from executions.callers import Caller
from orchestration.model.client import MeteredModel
from orchestration.model.replies import Message, Reply
from orchestration.proposals import Proposal, UnreadableProposal, read_proposal
from orchestration.retrieval import find_tools
from orchestration.selection import choose_call
from orchestration.stages import Failure, StageFailed

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
