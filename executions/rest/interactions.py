"""REST's door to the runs themselves: ask one something, tell one something."""

from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.database import run_without_connection
from catalogue.permissions import Access
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.description import ProblemSerializer
from catalogue.rest.errors import Problem, Refusal
from catalogue.scopes import Scope
from executions.interacting import (
    EngineSilent,
    InteractionRefused,
    SignalUncertain,
    UnfitArguments,
    UnknownInteraction,
    query_execution,
    signal_execution,
)
from executions.models import Execution
from executions.reading import UnknownExecution
from executions.rest.callers import caller_of
from executions.rest.serializers import AnyJSONField, ExecutionDetailSerializer

REFUSALS = {
    400: OpenApiResponse(
        ProblemSerializer, "The workflow declares nothing of that name, or the arguments do not fit it."
    ),
    409: OpenApiResponse(
        ProblemSerializer,
        "The run does not go on (yet, or any more), the engine cannot do it at all, or it refused.",
    ),
    503: OpenApiResponse(ProblemSerializer, "The engine did not answer. Nothing happened; try again later."),
}
UNCERTAIN = OpenApiResponse(
    ProblemSerializer, "Whether the engine took the signal is not known. Do not just send it again."
)

Result = TypeVar("Result")


class TalkSerializer(StrictSerializer):
    """A query to put to a run, or a signal to send it."""

    name = serializers.CharField(max_length=255, help_text="As the workflow declares it.")
    arguments = serializers.DictField(default=dict, help_text="By its inputSchema.")


class AnswerSerializer(serializers.Serializer[Any]):
    execution_id = serializers.UUIDField(source="execution.pk")
    query = serializers.CharField()
    answer = AnyJSONField(source="value", help_text="What the run answered.")


class InteractionActions:
    """For the set of views of executions."""

    access: ClassVar[dict[str, Access]] = {
        "query": Access(Scope.READ, "executions.view_execution"),
        "signal": Access(Scope.RUN, "executions.change_execution"),
    }

    @extend_schema(
        operation_id="executions_query",
        summary="Ask a run",
        description="Puts one of the queries that the workflow declares to a run that goes on or, where the "
        "engine still answers for it, has ended. It changes nothing.",
        request=TalkSerializer,
        responses={200: AnswerSerializer, **REFUSALS},
        examples=[OpenApiExample("Without arguments", {"name": "progress"}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def query(self, request: Request, pk: str) -> Response:
        name, arguments = _asked(request)
        answer = _converse(query_execution(pk, name, arguments, caller=caller_of(request)))
        return Response(AnswerSerializer(answer).data)

    @extend_schema(
        operation_id="executions_signal",
        summary="Tell a run",
        description="Sends one of the signals that the workflow declares to a run that goes on, once. The "
        "answer is the execution's record; what the run makes of the signal shows later.",
        request=TalkSerializer,
        responses={200: ExecutionDetailSerializer, **REFUSALS, 504: UNCERTAIN},
        examples=[
            OpenApiExample(
                "With arguments", {"name": "approve", "arguments": {"by": "Ada"}}, request_only=True
            )
        ],
    )
    @action(detail=True, methods=["post"])
    def signal(self, request: Request, pk: str) -> Response:
        name, arguments = _asked(request)
        told = _converse(signal_execution(pk, name, arguments, caller=caller_of(request)))
        shown = Execution.objects.select_related("payload").prefetch_related("events").get(pk=told.pk)
        return Response(ExecutionDetailSerializer(shown).data)


def _asked(request: Request) -> tuple[str, dict[str, Any]]:
    asked = TalkSerializer(data=request.data)
    asked.is_valid(raise_exception=True)
    return asked.validated_data["name"], asked.validated_data["arguments"]


def _converse(talk: Coroutine[Any, Any, Result]) -> Result:
    try:
        return run_without_connection(talk)
    except UnknownExecution as error:
        raise NotFound(str(error)) from None
    except InteractionRefused as error:
        raise _refusal(error) from None


def _refusal(error: InteractionRefused) -> Refusal:
    told = str(error)
    match error:
        case UnknownInteraction():
            problems = [Problem("/name", told)]
            return Refusal(status.HTTP_400_BAD_REQUEST, told, kind="validation", errors=problems)
        case UnfitArguments():
            problems = [Problem(f"/arguments{problem.path}", problem.message) for problem in error.problems]
            return Refusal(status.HTTP_400_BAD_REQUEST, told, kind="validation", errors=problems)
        case EngineSilent():
            return Refusal(status.HTTP_503_SERVICE_UNAVAILABLE, told, kind="execution")
        case SignalUncertain():
            return Refusal(status.HTTP_504_GATEWAY_TIMEOUT, told, kind="execution")
        case _:
            return Refusal(status.HTTP_409_CONFLICT, told, kind="execution")
