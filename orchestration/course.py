"""One request on its way through the stages, which its record tells as they happen."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.models import Execution
from orchestration.answers import read_answer
from orchestration.asked import Asked
from orchestration.choosing.retrieval import find_tools
from orchestration.choosing.selection import Selection, approve_anew, choose_call
from orchestration.models import WorkflowRequest
from orchestration.opening import open_request
from orchestration.refusals import RequestRefused
from orchestration.rejoining import wait_for_end
from orchestration.running import describe_failure, longest_wait, run_call
from orchestration.sending import choose_as_shown
from orchestration.spending import Spending
from orchestration.stages import Failure, Stage, StageFailed, StageState
from orchestration.wording import put_into_words

OURS = "An error of ours, not of the request; the server's log has the details."
GIVEN_UP = "The request was given up, as it took longer than its limits allow."
NOT_FORMATTED = "response_format_instructions had no effect, as format_response is not true."
GRACE = timedelta(seconds=60)
"""Beyond what a stage may take by its own limits; after it the request is taken for interrupted."""


class Course:
    """`run` never raises for what a request can come to: that is in its record, or in `refusal`."""

    request: WorkflowRequest

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._spending = Spending()
        ignored = asked.response_format_instructions.strip() and not asked.format_response
        self._warnings: list[str] = [NOT_FORMATTED] if ignored else []
        self._tool = ""
        self.refusal: RequestRefused | None = None
        self.retry_after: int | None = None

    async def run(self) -> None:
        try:
            self.request = await run_in_database(open_request, self._asked)
            if self.request.pk != self._asked.id:
                await wait_for_end(self.request)
                return
        except RequestRefused as refusal:
            self.refusal = refusal
            return
        try:
            await self._pass_stages()
        except StageFailed as error:
            self._log(error)
            await self._fail(error)
        except Exception as error:  # noqa: BLE001 - said in the next line
            self._log(error)
            await self._fail(StageFailed(OURS, failure=Failure.INTERNAL))

    async def _pass_stages(self) -> None:
        asked = self._asked
        tools = await run_in_database(find_tools, asked.tool_ids, caller=asked.caller)
        await self._begin(Stage.LLM_SELECTION, questions=2, message=_count(tools))
        selection = await self._choose(tools)
        self._warnings += selection.warnings
        self._tool = selection.approved.workflow.tool_name
        chosen = _found_by(selection)
        if asked.dry_run:
            await self._succeed(_tell(selection), **chosen)
            return
        wait = longest_wait(selection.approved)
        await self._begin(Stage.API_EXECUTION, seconds=wait, message=_tell(selection), **chosen)
        execution = await run_call(selection.approved, caller=asked.caller, key=asked.id, fresh=asked.fresh)
        await self._answer_with(execution)

    async def _choose(self, tools: Mapping[str, Workflow]) -> Selection:
        if (shown_by := self._asked.as_shown_by) is not None:
            approved = await run_in_database(choose_as_shown, shown_by, tools)
            return Selection(approved=approved, rounds=0)
        chosen = await choose_call(self._asked.user_instructions, tools, spending=self._spending)
        approved = await run_in_database(approve_anew, chosen.approved, caller=self._asked.caller)
        return replace(chosen, approved=approved)

    async def _answer_with(self, execution: Execution) -> None:
        if not execution.is_settled:
            await run_in_database(self.request.await_run, execution.pk, **self._costs())
            self._bound().info("A request in words is answered while its run goes on")
        elif not execution.succeeded:
            message, failure = describe_failure(execution)
            # What the connector raised shows where in the exchange with the engine it went wrong.
            raise StageFailed(message, failure=failure, execution_id=execution.pk) from execution.raised
        elif self._asked.format_response:
            await self._format(execution)
        else:
            await self._succeed(execution.told_state, execution_id=execution.pk)

    async def _format(self, execution: Execution) -> None:
        """What goes wrong here costs the words, not the answer (C8.4)."""
        stage, state, text = Stage.RESPONSE_FORMATTING, StageState.DONE, ""
        await self._begin(stage, questions=1, message=execution.told_state, execution_id=execution.pk)
        answered = await run_in_database(read_answer, self.request.pk)
        message = ""
        try:
            text, warnings = await put_into_words(
                answered.raw_response or {}, self._asked, spending=self._spending
            )
            self._warnings += warnings
        except StageFailed as error:
            self._log(error)
            state, message = StageState.FAILED, error.message
            self._warnings.append(f"The response could not be put into words: {error.message}")
        await self._succeed(message, state=state, formatted_response=text)

    async def _begin(
        self, stage: Stage, *, questions: int = 0, seconds: float = 0.0, message: str = "", **found: Any
    ) -> None:
        """Raises StageFailed where the record was ended meanwhile: the same request may have come again."""
        within = timedelta(seconds=seconds + questions * settings.CATALOGUE["model_timeout"]) + GRACE
        begin_stage = self.request.begin_stage
        begun = await run_in_database(
            begin_stage, stage, within=within, message=message, **self._costs(), **found
        )
        if not begun:
            raise StageFailed(GIVEN_UP, failure=Failure.INTERRUPTED)

    async def _succeed(self, message: str, *, state: StageState = StageState.DONE, **found: Any) -> None:
        ended = await run_in_database(
            self.request.succeed, message=message, state=state, **self._costs(), **found
        )
        self._bound().info("A request in words succeeded" if ended else GIVEN_UP)

    async def _fail(self, error: StageFailed) -> None:
        self.retry_after = error.retry_after
        found = {"invalid_tool_ids": error.invalid_tool_ids, **self._costs()}
        if error.execution_id is not None:
            found["execution_id"] = error.execution_id
        await run_in_database(self.request.fail, error.message, failure=error.failure, **found)

    def _costs(self) -> dict[str, Any]:
        usage = self._spending.usage
        return {
            "model": self._spending.model,
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
        """With the stack trace; the instructions are in the record only (C8.5)."""
        expected = isinstance(error, StageFailed) and error.failure != Failure.INTERRUPTED
        level = "WARNING" if expected else "ERROR"
        self._bound().opt(exception=error).log(level, "A request in words failed: {}", error)


def _count(tools: Mapping[str, Workflow]) -> str:
    return "1 tool" if len(tools) == 1 else f"{len(tools)} tools"


def _tell(selection: Selection) -> str:
    told = {0: ", as the dry run showed it", 1: ""}.get(
        selection.rounds, ", once its first proposal was sent back"
    )
    return f"{selection.approved.workflow.tool_name}{told}"


def _found_by(selection: Selection) -> dict[str, Any]:
    approved = selection.approved
    spec = approved.http_spec
    return {
        "selected_tool": approved.workflow.tool_name,
        "reason": approved.reason,
        "arguments": approved.arguments,
        "http_spec": None if spec is None else spec.model_dump(mode="json"),
    }
