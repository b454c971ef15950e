"""Carrying out what a dry run showed: that very call, without asking the model once more."""

import uuid
from collections.abc import Mapping

from catalogue.models import Workflow
from executions.callers import Caller
from orchestration.asked import Asked
from orchestration.choosing.guard import Approved, ProposalRefused, check_proposal
from orchestration.choosing.proposals import Proposal
from orchestration.models import WorkflowRequest
from orchestration.refusals import NothingToSend
from orchestration.stages import Failure, StageFailed

NEW_DRY_RUN = "Nothing was sent; make a new dry run."


def may_be_sent(record: WorkflowRequest, *, caller: Caller) -> bool:
    """Whoever asked decides, as long as it is known what would be sent."""
    succeeded = record.dry_run and record.status == WorkflowRequest.Status.SUCCESS
    return succeeded and record.arguments is not None and record.caller == caller.key


def ask_to_send(dry_run: WorkflowRequest, *, caller: Caller, key: uuid.UUID) -> Asked:
    """A request of its own with this key, of which there is one however often it is asked.

    Raises NothingToSend.
    """
    if not may_be_sent(dry_run, caller=caller):
        raise NothingToSend(dry_run)
    return Asked(
        id=key,
        user_instructions=dry_run.instructions,
        tool_ids=[dry_run.selected_tool],
        format_response=dry_run.format_response,
        response_format_instructions=dry_run.format_instructions,
        caller=caller,
        idempotency_key=f"dry-run:{dry_run.pk}",
        as_shown_by=dry_run.pk,
    )


def choose_as_shown(dry_run_id: uuid.UUID, tools: Mapping[str, Workflow]) -> Approved:
    """The call of the dry run. Raises StageFailed where the tool would make another request of it by now."""
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
