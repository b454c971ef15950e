"""What runs ask people while they are polled, and how each answer reaches the engine once.

A row of InputRequest holds the questions of the last poll, and the answers on their way to the engine:

- DUE: committed by any process. Of two people, the first to lock the run's row answers; the other one gets
  AnswerRefused.
- SENDING: marked by the step that holds the run's lease, before it sends it. If the outcome is unknown, or
  the process dies, it stays so, and a poll decides: no longer asked, it has arrived; still asked after
  SETTLE, the engine has not taken it, and it is DUE again.
- DONE: the engine has taken it, or asks no more. If it asks after SETTLE, that is a new question.

The locks are taken in this order: the run's row, then that of InputRequest.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from catalogue.models import Workflow
from catalogue.schema_limits import UnsafeSchema
from catalogue.schemas import ArgumentProblem, check_arguments, check_input_schema
from catalogue.served_schemas import Place, inputs_at
from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable, Unsupported, backoff_seconds
from connectors.network.redaction import printable, shorten
from connectors.protocol import Question
from executions.approvals import PERMISSION
from executions.models import Execution, InputRequest
from executions.models.execution import DOORS, State, size_of
from executions.models.transitions import Event
from executions.wakeups import request_poll, wake

DUE, SENDING, DONE = "due", "sending", "done"
SETTLE = timedelta(seconds=5)  # Engines may list a question for a moment after its answer
LONGEST_PAUSE_SECONDS = 60.0  # Before an answer that could not be sent is sent again
MAX_QUESTIONS, MAX_MESSAGE, MAX_SCHEMA_BYTES = 20, 2_000, 100_000
MAX_REFUSALS = 3  # After so many, clients are not asked again: one without a person would answer for ever
FORM_WORDS = {
    "type", "title", "description", "default", "enum", "enumNames", "format", "minLength", "maxLength",
    "minimum", "maximum", "minItems", "maxItems",
}  # fmt: skip
Documents = dict[str, dict[str, Any]]  # By the engine's ids of the questions


class AnswerRefused(Exception):
    """Nothing was answered; the message says why."""


class NotAllowedToAnswer(AnswerRefused):
    def __init__(self, who: str) -> None:
        super().__init__(f"Nothing was answered: {who} on the run's page.")


class UnfitAnswer(AnswerRefused):
    def __init__(self, problems: Sequence[ArgumentProblem]) -> None:
        listed = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"The answer does not fit the question:\n{listed}")
        self.problems = problems


# What polls report


def is_news(row: InputRequest | None, asked: Sequence[Question]) -> bool:
    """Returns whether a poll that reports these changes something, or decides about an answer."""
    if row is None or row.questions is None or row.answers:
        return True
    return _told(row.questions) != _told(_read(asked))


def record_questions(execution: Execution, asked: Sequence[Question]) -> timedelta | None:
    """Records what a poll of this step reports. Returns when the next step is due because of an answer; None:
    no answer is on its way. Within a transaction."""
    if not _lock_as_holder(execution):
        return None
    row = InputRequest.objects.filter(execution=execution.pk).first()
    known: Documents = (row and row.questions) or {}
    listed, now, events, answers = _read(asked), timezone.now(), list[Event](), Documents()
    for key, given in ((row and row.answers) or {}).items():
        left, event = _judge(given, is_listed=key in listed, now=now)
        events += [(event[0], f"{_name(known[key])}: {event[1]}")] if event else []
        if left is not None:
            answers[key] = left
        elif key in listed:
            known.pop(key)
    for key in known.keys() - listed.keys() - ((row and row.answers) or {}).keys():
        events.append(("question_gone", f"{_name(known[key])}: the engine no longer asks it."))
    for key in listed.keys() & known.keys():
        listed[key]["refusals"] = known[key]["refusals"]
    _write(execution, row, listed, answers, events, same={
        key for key in listed if key in known and _told(known)[key] == _told(listed)[key]
    })  # fmt: skip
    return _next_turn(answers)


def _read(asked: Sequence[Question]) -> Documents:
    return {
        one.id: {
            "message": shorten(printable(one.message), MAX_MESSAGE),
            "schema": one.schema if _is_storable(one.schema) else {"type": "object"},
            "url": one.url,
            "until": one.until and one.until.isoformat(),
            "refusals": [],
        }
        for one in list(asked)[:MAX_QUESTIONS]
    }


def _is_storable(schema: dict[str, Any]) -> bool:
    try:
        return size_of(schema) <= MAX_SCHEMA_BYTES
    except (TypeError, ValueError):
        return False


def _told(questions: Documents) -> Documents:
    """Without what makes no other question: engines may move the time until which they ask."""
    return {key: {**one, "until": None, "refusals": None} for key, one in questions.items()}


def _name(question: Mapping[str, Any]) -> str:
    return f"“{shorten(question['message'], 100)}”" if question["message"] else "The question"


def _judge(
    given: dict[str, Any], *, is_listed: bool, now: datetime
) -> tuple[dict[str, Any] | None, Event | None]:
    """What a poll makes of an answer: what is left of it, and a line for the timeline."""
    status, has_settled = given["status"], now - datetime.fromisoformat(given["at"]) >= SETTLE
    if not is_listed:
        outcomes = {
            DUE: ("answer_too_late", f"the engine no longer asks; the answer by {given['by']} was not sent."),
            SENDING: ("answer_sent", f"the engine no longer asks: the answer by {given['by']} has arrived."),
        }
        return None, outcomes.get(status)
    if status == SENDING and has_settled:
        return {**given, "status": DUE}, ("answer_missed", "the engine still asks; the answer is sent again.")
    if status == DONE and has_settled:
        return None, ("asked_again", "the engine asks it again.")
    return given, None


def _next_turn(answers: Documents) -> timedelta | None:
    """None: no answer needs one."""
    pauses = [
        backoff_seconds(given["tries"] - 1, first=1, longest=LONGEST_PAUSE_SECONDS) if given["tries"] else 0.0
        for given in answers.values()
        if given["status"] == DUE
    ]
    # The others are decided by polls, within SETTLE.
    pauses += [1.0 for given in answers.values() if given["status"] != DUE]
    return timedelta(seconds=min(pauses)) if pauses else None


def _write(
    execution: Execution,
    row: InputRequest | None,
    questions: Documents,
    answers: Documents,
    events: list[Event],
    *,
    same: set[str],
) -> None:
    """`same`: the questions that are not asked anew. If others are, the row is another one, so that clients
    notice."""
    said = {} if row is None else {key: one for key, one in row.responses.items() if key in same}
    if row is not None and (not questions or row.requests.keys() != same or same != questions.keys()):
        row.delete()
        row = None
    if questions:
        if row is None:
            requests = {key: _request_for(execution, key, one) for key, one in questions.items()}
            row = InputRequest(execution=execution, requests=requests, responses=said)
            asked = [_name(one) for key, one in questions.items() if key not in same]
            events += [("asked", f"Waits for a person's answer: {name}") for name in asked]
        tired = [key for key, one in questions.items() if len(one["refusals"]) >= MAX_REFUSALS]
        row.responses |= {key: {"action": "cancel"} for key in tired}
        row.questions, row.answers = questions, answers
        row.save()
    is_open = bool(questions.keys() - answers.keys())
    answered_at = execution.question_answered_at if answers else None
    execution.ask_people(row.pk if row and is_open else None, *events, answered_at=answered_at)


def _lock_as_holder(execution: Execution) -> bool:
    """Also reads whether somebody has answered since."""
    row = Execution.objects.filter(
        pk=execution.pk, state=State.RUNNING, lease_holder=execution.lease_holder
    ).select_for_update()
    if (found := row.values_list("input_request", "question_answered_at").first()) is None:
        return False
    execution.input_request, execution.question_answered_at = found
    return True


def page_of_run(execution: Execution) -> str:
    return f"{settings.PUBLIC_URL}{reverse('admin:executions_execution_change', args=[execution.pk])}"


def _request_for(execution: Execution, key: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """As MCP asks it: by a form, or, if MCP has no such form, by the address of the run's page."""
    message = question["message"] or f"{execution.tool_name} waits for your consent."
    if refused := question["refusals"]:
        message = f"{message} The answer before was refused: {refused[-1]}"
    if (form := form_of(question["schema"])) is not None:
        asked = {"message": message, "requestedSchema": form}
    else:
        identity = f"{execution.pk}:{key}"[:200]
        asked = {"mode": "url", "message": message, "url": page_of_run(execution), "elicitationId": identity}
    return {"method": "elicitation/create", "params": asked}


def form_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema as MCP's forms can express it; None if they cannot."""
    fields = {
        name: _form_field(one.place) for name, one in inputs_at(Place(schema, schema)).properties.items()
    }
    required = schema.get("required") or []
    takes_others = not fields and schema.get("additionalProperties") not in (None, False)
    if takes_others or None in fields.values() or not fields.keys() >= set(required):
        return None
    return {"type": "object", "properties": fields, **({"required": required} if required else {})}


def _form_field(place: Place) -> dict[str, Any] | None:
    schema: dict[str, Any] = {}
    for part in place.chain():
        schema = part | schema
    kept = {word: value for word, value in schema.items() if word in FORM_WORDS and value is not None}
    choices = [one for word in ("anyOf", "oneOf") for one in place.at(schema).each(word)]
    if choices:
        several = [one for one in choices if one.schema != {"type": "null"}]
        inner = _form_field(several[0]) if len(several) == 1 else None
        return None if inner is None else inner | kept
    match schema.get("type"):
        case "string" | "number" | "integer" | "boolean":
            return kept
        case "array" if isinstance(items := schema.get("items"), dict) and "enum" in items:
            return {**kept, "items": {"type": "string", "enum": items["enum"]}}
        case None if "enum" in schema and all(isinstance(one, str) for one in schema["enum"]):
            return {**kept, "type": "string"}
    return None


# What people answer


def find_answerers(execution: Execution) -> str:
    """Says who alone answers; empty if the caller does, too."""
    if (workflow := execution.workflow) is None:
        return ""
    if workflow.answer_group:
        return f"a member of the group {workflow.answer_group} answers"
    return "an approver answers" if workflow.answered_by == Workflow.AnsweredBy.APPROVERS else ""


def is_answerer(execution: Execution, user: Any) -> bool:
    """Returns whether a signed-in user is one of those who alone answer."""
    if (workflow := execution.workflow) is None or not workflow.answer_group or user.is_superuser:
        return bool(user.has_perm(PERMISSION))
    return bool(user.groups.filter(name=workflow.answer_group).exists())


def answer_questions(
    execution: Execution,
    given: Mapping[str, dict[str, Any]],
    *,
    by: str,
    door: str,
    user: Any = None,
) -> None:
    """All or none, for the next step to send. `user`: who is signed in. Raises AnswerRefused."""
    if (who := find_answerers(execution)) and not (user is not None and is_answerer(execution, user)):
        raise NotAllowedToAnswer(who)
    with transaction.atomic():
        row = _lock_open(execution)
        now = timezone.now()
        for key, content in given.items():
            answer = {"content": _check(execution, row, key, content), "by": by, "door": str(door)}
            row.answers[key] = {**answer, "at": now.isoformat(), "status": DUE, "tries": 0}
            row.responses[key] = {"action": "accept"}
        row.save(update_fields=["answers", "responses"])
        names = ", ".join(_name(row.questions[key]) for key in given)
        event = ("answered", f"{by} answered through {DOORS[door]}: {names}")
        is_open = bool(row.questions.keys() - row.answers.keys())
        execution.ask_people(row.pk if is_open else None, event, answered_at=now, next_attempt_at=now)
        transaction.on_commit(lambda: wake(execution.pk))
        request_poll()


def _lock_open(execution: Execution) -> InputRequest:
    """Raises AnswerRefused."""
    locked = Execution.objects.select_for_update().filter(pk=execution.pk)
    found = locked.values_list("state", "question_answered_at").first()
    state, execution.question_answered_at = found or ("", None)
    row = InputRequest.objects.filter(execution=execution.pk).exclude(questions=None).first()
    if state != State.RUNNING or row is None:
        raise AnswerRefused(f"Nothing was answered: {execution.tool_name} asks nothing (any more).")
    return row


def _check(execution: Execution, row: InputRequest, key: str, content: dict[str, Any]) -> dict[str, Any]:
    """Raises AnswerRefused."""
    if key not in row.questions:
        raise AnswerRefused(f"Nothing was answered: it asks {', '.join(row.questions)}, not {key[:100]!r}.")
    if (before := row.answers.get(key)) is not None:
        how = f"at {before['at'][:19]} UTC through {DOORS[before['door']]}"
        raise AnswerRefused(f"Nothing was answered: {before['by']} has answered this already, {how}.")
    if execution.cancel_requested_at is not None and not execution.cancel_refusal:
        raise AnswerRefused("Nothing was answered: the run is being cancelled.")
    content, problems = check_content(row.questions[key]["schema"], content)
    if problems:
        raise UnfitAnswer(problems)
    return content


def check_content(
    schema: dict[str, Any], content: dict[str, Any]
) -> tuple[dict[str, Any], list[ArgumentProblem]]:
    """Only the engine itself checks it by a schema that cannot be used."""
    try:
        size_of(content)
    except ValueError:
        return content, [ArgumentProblem("", "JSON has no infinite numbers and no NaN")]
    checked = check_arguments(usable_schema(schema), content)
    return checked.arguments, checked.problems


def usable_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return check_input_schema(schema).schema
    except UnsafeSchema:
        return {"type": "object"}


def take_responses(execution: Execution, results: Mapping[str, Any], *, by: str) -> list[str]:
    """Takes a client's results of our requests, by key. Returns why some were not taken."""
    refusals = []
    for key, result in results.items():
        try:
            _take_response(execution, key, result, by)
        except AnswerRefused as error:
            refusals.append(str(error))
    return refusals


def _take_response(execution: Execution, key: str, result: Any, by: str) -> None:
    """One that declines, or has only opened an address, leaves it to others. Raises AnswerRefused."""
    action = str(result.get("action", "cancel")) if isinstance(result, dict) else "cancel"
    refusal: UnfitAnswer | None = None
    with transaction.atomic():
        row = _lock_open(execution)
        if action == "accept" and "requestedSchema" in row.requests.get(key, {"params": {}})["params"]:
            try:
                answer_questions(
                    execution, {key: result.get("content") or {}}, by=by, door=Execution.Door.MCP
                )
            except UnfitAnswer as error:
                refusal = error
                _refuse(execution, row, key, str(error))
        elif key in row.questions and key not in row.responses:
            row.responses[key] = {"action": action}
            row.save(update_fields=["responses"])
            execution.note("client_replied", f"{_name(row.questions[key])}: {action} by {by}")
    if refusal is not None:
        raise refusal


def _refuse(execution: Execution, row: InputRequest, key: str, why: str) -> None:
    """Asks anew, with the reason."""
    questions: Documents = row.questions
    questions[key]["refusals"] = [*questions[key]["refusals"], shorten(printable(why), MAX_MESSAGE)]
    answers = {other: given for other, given in row.answers.items() if other != key}
    event = ("answer_refused", f"{_name(questions[key])}: {why}")
    _write(execution, row, questions, answers, [event], same=questions.keys() - {key})


# How the step that holds the lease sends them


def begin_sending(execution: Execution) -> Documents:
    """Marks what is due. Returns the contents by question."""
    with transaction.atomic():
        if not _lock_as_holder(execution):
            return {}
        row = InputRequest.objects.filter(execution=execution.pk).first()
        due = {key: one for key, one in ((row and row.answers) or {}).items() if one["status"] == DUE}
        for given in due.values():
            given |= {"status": SENDING, "at": timezone.now().isoformat(), "tries": given["tries"] + 1}
        if row is not None and due:
            row.save(update_fields=["answers"])
    return {key: given["content"] for key, given in due.items()}


def record_sent(execution: Execution, key: str, error: ConnectorError | None) -> None:
    """Records what came of sending an answer, unless another process has taken the run over."""
    with transaction.atomic():
        if not _lock_as_holder(execution):
            return
        row = InputRequest.objects.get(execution=execution.pk)
        given = row.answers[key]
        if isinstance(error, Rejected | Unsupported) and not error.needs_operator:
            _refuse(execution, row, key, f"The engine refused the answer by {given['by']}: {error.message}")
            return
        kind, words = "answer_unknown", "" if error is None else error.message
        if error is None:
            given["status"], kind, words = DONE, "answer_sent", f"the engine has the answer by {given['by']}."
        elif isinstance(error, NotFound):
            given["status"], kind = DONE, "question_gone"
        elif isinstance(error, Unreachable) or error.needs_operator:
            given["status"], kind = DUE, "answer_failed"
        given["at"] = timezone.now().isoformat()
        row.save(update_fields=["answers"])
        if kind != "answer_failed" or given["tries"] == 1:
            execution.note(kind, f"{_name(row.questions[key])}: {words}")


# What the doors show


def describe_questions(execution: Execution) -> list[dict[str, Any]]:
    """What it asks people at present, as JSON; one query if it does."""
    if execution.state != State.RUNNING or not execution.has_asked:
        return []
    row = InputRequest.objects.filter(execution=execution.pk).first()
    given = (row and row.answers) or {}
    return [
        {
            "question": key,
            **one,
            "answered_by": given[key]["by"] if key in given else None,
            "answered_at": given[key]["at"] if key in given else None,
        }
        for key, one in ((row and row.questions) or {}).items()
    ]


def describe_pause(execution: Execution) -> dict[str, Any]:
    """The questions, and in a sentence for the caller who answers where; empty if it asks nothing."""
    if not (questions := describe_questions(execution)):
        return {}
    return {"questions": questions, "waits_for": _describe_wait(execution, questions)}


def _describe_wait(execution: Execution, questions: Sequence[Mapping[str, Any]]) -> str:
    still = [one for one in questions if one["answered_by"] is None]
    if not still:
        return f"{questions[0]['answered_by']} has answered, and the answer is on its way to the engine."
    asked = "; ".join(_name(one) + (f" (until {one['until']})" if one["until"] else "") for one in still)
    who = find_answerers(execution) or "the caller's user answers in the client, or a person"
    elsewhere = [one["url"] for one in still if one["url"]]
    also = f" The engine itself asks at {', '.join(elsewhere)}." if elsewhere else ""
    return (
        f"It waits for a person's answer: {asked}. {who[0].upper()}{who[1:]} on the run's page, "
        f"{page_of_run(execution)}.{also}"
    )
