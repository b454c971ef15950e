"""Runs failed executions again, each once: several where a second run does no harm, or one whose caller asks
for it (`executions.control`).

The id of the new execution follows from the failed one's, so that the primary key decides races:
- A double click, or a request that is sent again: the second finds the first one's executions.
- Two people at the same time: of each execution one starts the run, the other is told that it was.
- A process that dies halfway: the next request starts the others.
An execution that was resolved, or whose workflow was changed or deleted since the question was asked, is
judged anew. A new run that fails is a failure of its own, and can be run again.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from access.callers import Caller
from catalogue.argument_overrides import constants_of
from catalogue.history import Actor, record_change
from catalogue.models import Workflow
from executions.models import Execution, ExecutionPayload, State
from executions.models.lifecycle import StartRequest
from executions.refusals import AlreadyRetried, Busy, StartRefused
from executions.starting import create_execution
from executions.wakeups import request_poll

AT_ONCE = 100  # Executions that one request runs again


class Obstacle(TextChoices):
    """Why an execution is not run again together with others."""

    UNCONFIRMED = "unconfirmed", _("It is not known whether they ran; resolve them first.")
    NOT_FAILED = "not_failed", _("They have not failed.")
    ALREADY = "already", _("They have been run again.")
    NO_WORKFLOW = "no_workflow", _("Their workflow was deleted.")
    NO_ARGUMENTS = "no_arguments", _("Their arguments are no longer kept.")
    DESTRUCTIVE = "destructive", _("Their workflow may delete or overwrite data.")
    NOT_REPEATABLE = "not_repeatable", _("The engine accepted them, and their workflow may act twice.")


@dataclass(frozen=True, slots=True)
class Plan:
    ready: list[Execution]
    """The oldest first."""
    obstacles: dict[Obstacle, int]


@dataclass(slots=True)
class Reruns:
    started: list[Execution] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    """By what was said of them."""


def rerun_id(execution_id: uuid.UUID) -> uuid.UUID:
    return uuid.uuid5(execution_id, "again")


def find_retry(execution: Execution) -> Execution | None:
    return Execution.objects.filter(pk=rerun_id(execution.pk)).first()


def plan_reruns(keys: Sequence[uuid.UUID]) -> Plan:
    """Takes four queries, for at most a thousand executions."""
    executions = list(Execution.objects.filter(pk__in=keys).defer("error").order_by("created_at", "pk"))
    workflows = Workflow.objects.for_lists().in_bulk(
        {one.workflow_id for one in executions if one.workflow_id}
    )
    kept = ExecutionPayload.objects.filter(pk__in=keys, input__isnull=False)
    with_arguments = set(kept.values_list("pk", flat=True))
    ids = {rerun_id(key): key for key in keys}
    again = {ids[key] for key in Execution.objects.filter(pk__in=ids).values_list("pk", flat=True)}
    ready: list[Execution] = []
    obstacles: Counter[Obstacle] = Counter()
    for execution in executions:
        workflow = workflows.get(execution.workflow_id or 0)
        obstacle = _find_obstacle(
            execution,
            workflow,
            is_again=execution.pk in again,
            has_arguments=execution.pk in with_arguments,
        )
        if obstacle is None:
            ready.append(execution)
        else:
            obstacles[obstacle] += 1
    return Plan(ready, dict(obstacles.most_common()))


def _find_obstacle(
    execution: Execution, workflow: Workflow | None, *, is_again: bool, has_arguments: bool
) -> Obstacle | None:
    if execution.state == State.UNCONFIRMED:
        return Obstacle.UNCONFIRMED
    if execution.state not in (State.FAILED, State.TIMED_OUT):
        return Obstacle.NOT_FAILED
    if is_again:
        return Obstacle.ALREADY
    if workflow is None:
        return Obstacle.NO_WORKFLOW
    if not has_arguments:
        return Obstacle.NO_ARGUMENTS
    hints = workflow.effective_hints
    if hints.get("destructiveHint"):
        return Obstacle.DESTRUCTIVE
    is_harmless = hints.get("readOnlyHint") or hints.get("idempotentHint")
    return None if is_harmless or was_never_started(execution) else Obstacle.NOT_REPEATABLE


def was_never_started(execution: Execution) -> bool:
    """A key at the engine would not help where this is not known: a new execution has a new key."""
    is_unsent = execution.state == State.FAILED or execution.admitted_at is None
    return is_unsent and execution.started_at is None and not execution.run_id


def run_again(
    executions: Sequence[Execution], *, caller: Caller, actor: Actor, may_be_hidden: bool
) -> Reruns:
    """Runs those of a plan with their original arguments, until a limit is reached."""
    done = Reruns()
    for number, execution in enumerate(executions):
        try:
            request = request_for(
                execution,
                caller,
                door=Execution.Door.ADMIN,
                may_be_hidden=may_be_hidden,
                in_any_toolset=True,
            )
            started = create_execution(request)
        except Busy as error:
            done.refusals[str(error)] += len(executions) - number
            break
        except Workflow.DoesNotExist:
            done.refusals[str(Obstacle.NO_WORKFLOW.label)] += 1
            continue
        except ExecutionPayload.DoesNotExist:
            done.refusals[str(Obstacle.NO_ARGUMENTS.label)] += 1
            continue
        except AlreadyRetried:
            done.refusals[str(Obstacle.ALREADY.label)] += 1
            continue
        except StartRefused as error:
            done.refusals[str(error)] += 1
            continue
        record_change(actor, [execution], f"Run again as execution {started.pk}.")
        done.started.append(started)
    if any(not execution.is_settled for execution in done.started):
        request_poll()
    return done


def request_for(
    execution: Execution, caller: Caller, *, door: Execution.Door, **options: Any
) -> StartRequest:
    """`options`: more of the StartRequest. Raises Workflow.DoesNotExist and ExecutionPayload.DoesNotExist."""
    workflow = Workflow.objects.get(executions=execution)
    given: Any = ExecutionPayload.objects.get(pk=execution.pk, input__isnull=False).sent_input
    # The curator's own are added anew.
    constants = constants_of(workflow.argument_overrides)
    return StartRequest(
        tool_name=workflow.tool_name,
        arguments={name: value for name, value in given.items() if name not in constants},
        caller=caller,
        door=door,
        idempotency_key=f"again-{execution.pk}",
        fresh=True,
        retry_of=execution,
        id=rerun_id(execution.pk),
        **options,
    )
