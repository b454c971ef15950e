import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.advancing import begin
from executions.callers import Caller
from executions.models import Execution
from executions.models.execution import StartRequest
from executions.refusals import Busy, StartRefused, TooManyCalls
from executions.waiting import start_and_wait
from orchestration import records
from orchestration.formatting import format_answer
from orchestration.guard import Approved, Proposal, ProposalRefused, check_proposal
from orchestration.model.client import MeteredModel
from orchestration.models import Failure, Stage, StageFailed, StageState, WorkflowRequest
from orchestration.request_types import NotReplayable, RequestInput, RequestOutcome, RequestRefused
from orchestration.retrieval import find_tools
from orchestration.selection import Selection, approve_anew, choose_call

OURS = "An error of ours, not of the request; the server's log has the details."
GIVEN_UP = "The request was given up, as it took longer than its limits allow."
NOT_FORMATTED = "response_format_instructions had no effect, as format_response is not true."
GRACE = timedelta(seconds=60)  # Added to a stage's own limits; after that the request counts as interrupted
NEW_DRY_RUN = "Nothing was sent; make a new dry run."


class Pipeline:
    """`run` does not raise: failures are in the record or in `refusal`."""

    request: WorkflowRequest

    def __init__(self, asked: RequestInput) -> None:
        self._asked = asked
        self._model = MeteredModel()
        ignored = asked.response_format_instructions.strip() and not asked.format_response
        self._warnings: list[str] = [NOT_FORMATTED] if ignored else []
        self._tool = ""
        self.refusal: RequestRefused | None = None
        self.retry_after: int | None = None

    async def run(self) -> None:
        if not await self._open():
            return
        async with self._recorded_failures():
            tools = await run_in_database(self._find_tools)
            if self._asked.replayed_dry_run is None:
                selection = await choose_call(self._asked.user_instructions, tools, model=self._model)
            else:
                approved = await run_in_database(replay_dry_run, self._asked.replayed_dry_run, tools)
                selection = Selection(approved=approved, rounds=0)
            approved = await run_in_database(self._approve, selection)
            if not self._asked.dry_run:
                execution = await run_call(
                    approved, caller=self._asked.caller, key=self._asked.id, fresh=self._asked.fresh
                )
                await self._answer_with(execution)

    async def _open(self) -> bool:
        """Whether the request is a new one."""
        try:
            self.request = await run_in_database(records.open_request, self._asked)
            if self.request.pk != self._asked.id:
                await records.wait_for_original(self.request)
                return False
        except RequestRefused as refusal:
            self.refusal = refusal
            return False
        return True

    @asynccontextmanager
    async def _recorded_failures(self) -> AsyncIterator[None]:
        try:
            yield
        except StageFailed as error:
            self._log(error)
            await self._fail(error)
        except Exception as error:  # noqa: BLE001 - logged in the next line
            self._log(error)
            await self._fail(StageFailed(OURS, failure=Failure.INTERNAL))

    def _find_tools(self) -> dict[str, Workflow]:
        tools = find_tools(self._asked.tool_ids, caller=self._asked.caller)
        self._begin(Stage.LLM_SELECTION, questions=3, message=_count(tools))
        return tools

    def _approve(self, selection: Selection) -> Approved:
        """By the tool's present definition; ends a dry run."""
        approved = selection.approved
        if selection.rounds:
            approved = approve_anew(approved, caller=self._asked.caller)
            selection = replace(selection, approved=approved)
        self._warnings += selection.warnings
        self._tool = approved.workflow.tool_name
        how = {0: ", as the dry run showed it", 1: ""}.get(
            selection.rounds, ", once its first proposal was sent back"
        )
        message, found = f"{self._tool}{how}", _found_by(selection)
        if self._asked.dry_run:
            self._succeed(message, **found)
        else:
            self._begin(Stage.API_EXECUTION, seconds=longest_wait(approved), message=message, **found)
        return approved

    async def _answer_with(self, execution: Execution) -> None:
        if not execution.is_settled:
            await run_in_database(self.request.await_run, execution.pk, **self._costs())
            self._bound().info("A natural-language request is answered while its run goes on")
        elif not execution.succeeded:
            message, failure = records.describe_failure(execution)
            raise StageFailed(message, failure=failure, execution_id=execution.pk) from execution.raised
        elif self._asked.format_response:
            await self._format(execution)
        else:
            await run_in_database(self._succeed, execution.state_label, execution_id=execution.pk)

    async def _format(self, execution: Execution) -> None:
        """A failure here does not fail the request (C8.4)."""
        state, text, message = StageState.DONE, "", ""
        raw = await run_in_database(self._begin_formatting, execution)
        try:
            text, warnings = await format_answer(raw, self._asked, model=self._model)
            self._warnings += warnings
        except StageFailed as error:
            self._log(error)
            state, message = StageState.FAILED, error.message
            self._warnings.append(f"The response could not be put into words: {error.message}")
        await run_in_database(self._succeed, message, state=state, formatted_response=text)

    def _begin_formatting(self, execution: Execution) -> dict[str, Any]:
        """Returns the response to format."""
        self._begin(
            Stage.RESPONSE_FORMATTING, questions=1, message=execution.state_label, execution_id=execution.pk
        )
        return records.raw_response_of(execution, of_http_tool=self.request.http_spec is not None)

    def _begin(
        self, stage: Stage, *, questions: int = 0, seconds: float = 0.0, message: str = "", **found: Any
    ) -> None:
        """Raises StageFailed if the record has been ended as interrupted."""
        within = timedelta(seconds=seconds + questions * settings.CATALOGUE["model_timeout"]) + GRACE
        if not self.request.begin_stage(stage, within=within, message=message, **self._costs(), **found):
            raise StageFailed(GIVEN_UP, failure=Failure.INTERRUPTED)

    def _succeed(self, message: str, *, state: StageState = StageState.DONE, **found: Any) -> None:
        ended = self.request.succeed(message=message, state=state, **self._costs(), **found)
        self._bound().info("A natural-language request succeeded" if ended else GIVEN_UP)

    async def _fail(self, error: StageFailed) -> None:
        self.retry_after = error.retry_after
        found = {"invalid_tool_ids": error.invalid_tool_ids, **self._costs()}
        if error.execution_id is not None:
            found["execution_id"] = error.execution_id
        await run_in_database(self.request.fail, error.message, failure=error.failure, **found)

    def _costs(self) -> dict[str, Any]:
        usage = self._model.usage
        return {
            "model": self._model.model,
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "warnings": self._warnings,
        }

    def _bound(self) -> Any:
        request = self.request
        return logger.bind(
            request=request.pk, caller=request.caller, stage=request.stage.value, tool=self._tool
        )

    def _log(self, error: Exception) -> None:
        """The instructions are only in the record, not in the log (C8.5)."""
        expected = isinstance(error, StageFailed) and error.failure != Failure.INTERRUPTED
        level = "WARNING" if expected else "ERROR"
        self._bound().opt(exception=error).log(level, "A natural-language request failed: {}", error)


def _count(tools: Mapping[str, Workflow]) -> str:
    return "1 tool" if len(tools) == 1 else f"{len(tools)} tools"


def _found_by(selection: Selection) -> dict[str, Any]:
    approved = selection.approved
    spec = approved.http_spec
    return {
        "selected_tool": approved.workflow.tool_name,
        "reason": approved.reason,
        "arguments": approved.arguments,
        "http_spec": None if spec is None else spec.model_dump(mode="json"),
    }


async def answer_request(asked: RequestInput) -> RequestOutcome:
    """Failures are part of the outcome. Raises RequestRefused.

    Cancellation ends only the wait: the request runs to its end, and a repetition gets its answer.
    """
    pipeline = Pipeline(asked)
    await asyncio.shield(begin(pipeline.run()))
    if pipeline.refusal is not None:
        raise pipeline.refusal
    return await run_in_database(records.read_answer, pipeline.request.pk, retry_after=pipeline.retry_after)


def longest_wait(approved: Approved) -> float:
    """Seconds that the answer waits for the run, which continues after that."""
    seconds = approved.workflow.inline_wait_seconds
    return float(settings.CATALOGUE["inline_wait"] if seconds is None else seconds)


async def run_call(approved: Approved, *, caller: Caller, key: uuid.UUID, fresh: bool) -> Execution:
    """The execution with the id `key`, ended or not. Raises StageFailed if nothing was started."""
    request = StartRequest(
        tool_name=approved.workflow.tool_name,
        arguments=approved.arguments,
        caller=caller,
        door=Execution.Door.WORKFLOW,
        fresh=fresh,
        id=key,
    )
    try:
        return await start_and_wait(request, seconds=longest_wait(approved))
    except Busy as error:
        failure = Failure.TOO_MANY_CALLS if isinstance(error, TooManyCalls) else Failure.BUSY
        raise StageFailed(str(error), failure=failure, retry_after=error.retry_after) from error
    except StartRefused as error:
        raise StageFailed(str(error), failure=Failure.RUN_FAILED) from error


def can_be_replayed(record: WorkflowRequest, *, caller: Caller) -> bool:
    """Only by its caller, while its arguments are kept."""
    succeeded = record.dry_run and record.status == WorkflowRequest.Status.SUCCESS
    return succeeded and record.arguments is not None and record.caller == caller.key


def input_of_dry_run(dry_run: WorkflowRequest, *, caller: Caller, key: uuid.UUID) -> RequestInput:
    """A new request; only one for each dry run, by its idempotency key. Raises NotReplayable."""
    if not can_be_replayed(dry_run, caller=caller):
        raise NotReplayable(dry_run)
    return RequestInput(
        id=key,
        user_instructions=dry_run.instructions,
        tool_ids=[dry_run.selected_tool],
        format_response=dry_run.format_response,
        response_format_instructions=dry_run.format_instructions,
        caller=caller,
        idempotency_key=f"dry-run:{dry_run.pk}",
        replayed_dry_run=dry_run.pk,
    )


def replay_dry_run(dry_run_id: uuid.UUID, tools: Mapping[str, Workflow]) -> Approved:
    """The call of the dry run. Raises StageFailed if the tool would send another request by now."""
    shown = WorkflowRequest.objects.get(pk=dry_run_id)
    proposal = Proposal(tool=shown.selected_tool, reason=shown.reason, arguments=shown.arguments)
    try:
        approved = check_proposal(proposal, tools)
    except ProposalRefused as error:
        raise _changed(str(error)) from error
    spec = approved.http_spec
    if (None if spec is None else spec.model_dump(mode="json")) != shown.http_spec:
        raise _changed(f"{shown.selected_tool} would send another request now.")
    return approved


def _changed(how: str) -> StageFailed:
    return StageFailed(
        f"The tool has changed since the dry run: {how} {NEW_DRY_RUN}", failure=Failure.PROPOSAL_REFUSED
    )
