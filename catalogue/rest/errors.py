"""Every error of the API in one shape: a sentence, the kind of error, and each offending place."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.core.exceptions import ValidationError as ModelValidationError
from django.core.signals import got_request_exception
from django.http import Http404
from loguru import logger
from rest_framework import exceptions, status
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.serializers import as_serializer_error
from rest_framework.views import exception_handler

from catalogue.permissions import InsufficientScope

MAX_PROBLEMS = 50
NOT_VALID = "The request is not valid and nothing was changed; `errors` names each offending place."
SIGN_IN = "Send an access token as `Authorization: Bearer <token>`, or sign in to the admin as staff."
TOO_LARGE = "The request's body is too large; CATALOGUE_MAX_REQUEST_BYTES sets the limit."


@dataclass(frozen=True, slots=True)
class Problem:
    """One offending place of a request."""

    path: str
    """JSON Pointer into the body, or `?name` for a query parameter; empty for the request as a whole."""
    message: str


class Refusal(exceptions.APIException):
    """A refusal with everything that its answer says."""

    def __init__(
        self, status_code: int, detail: str, *, kind: str = "", errors: Iterable[Problem] = (), **more: Any
    ) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.kind = kind
        self.errors = list(errors)[:MAX_PROBLEMS]
        self.wait: int | None = None
        """Seconds, for `Retry-After`."""
        self.more = more
        """Further fields of the answer."""

    @classmethod
    def of_settings(cls, error: ModelValidationError) -> "Refusal":
        """Settings that a room has refused, keyed by field."""
        problems = list(find_problems(as_serializer_error(error)))
        told = "; ".join(f"{problem.path[1:]}: {problem.message}" for problem in problems)
        return cls(400, f"Nothing was changed. {told}", kind="configuration", errors=problems)


def answer_with_problem(error: Exception, context: dict[str, Any]) -> Response:
    """Render whatever a view raised; what nobody expected is logged and answered with 500."""
    # Also where the view renders something else, such as the API's description in YAML.
    context["request"].accepted_renderer = JSONRenderer()
    context["request"].accepted_media_type = JSONRenderer.media_type
    expected = _as_expected(error, context)
    answer = exception_handler(expected, context)
    if answer is None:
        return _answer_bug(error, context)
    answer.data = _body(expected)
    if isinstance(error, InsufficientScope):
        answer["WWW-Authenticate"] = f'Bearer error="insufficient_scope", scope="{error.scope.value}"'
    return answer


def find_problems(detail: Any, path: str = "") -> Iterator[Problem]:
    """Flatten REST framework's nested error details into places."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            of_whole = key == "non_field_errors"
            yield from find_problems(inner, path if of_whole else f"{path}/{_pointer_part(key)}")
    elif isinstance(detail, list):
        for position, inner in enumerate(detail):
            nested = isinstance(inner, dict | list)
            yield from find_problems(inner, f"{path}/{position}" if nested else path)
    else:
        yield Problem(path, str(detail))


def _as_expected(error: Exception, context: dict[str, Any]) -> Exception:
    if isinstance(error, Http404):
        address = context["request"].path[:200]
        return exceptions.NotFound(f"Not found: {address}. Its list shows what exists and may be seen.")
    if isinstance(error, ModelValidationError):
        return exceptions.ValidationError(as_serializer_error(error))
    if isinstance(error, SuspiciousOperation):
        return exceptions.ParseError("The request was refused as malformed.")
    return error


def _body(error: Exception) -> dict[str, Any]:
    if isinstance(error, Refusal):
        return _shaped(str(error.detail), error.kind, error.errors) | error.more
    if isinstance(error, exceptions.ValidationError):
        return _shaped(NOT_VALID, "validation", find_problems(error.detail))
    if isinstance(error, exceptions.NotAuthenticated):
        return _shaped(SIGN_IN)
    return _shaped(str(getattr(error, "detail", error)))


def _shaped(detail: str, kind: str = "", errors: Iterable[Problem] = ()) -> dict[str, Any]:
    listed = [{"path": problem.path, "message": problem.message} for problem in errors]
    body: dict[str, Any] = {"detail": detail}
    if kind:
        body["kind"] = kind
    if listed:
        body["errors"] = listed[:MAX_PROBLEMS]
    return body


def _answer_bug(error: Exception, context: dict[str, Any]) -> Response:
    logger.opt(exception=error).error("A request to {} failed", context["request"].path)
    # As Django does for an exception that no view catches, so that whoever listens for those is told.
    got_request_exception.send(sender=None, request=context["request"])
    detail = "An error of ours, not of the request; the server's log has the details."
    return Response(_shaped(detail), status=status.HTTP_500_INTERNAL_SERVER_ERROR)


def _pointer_part(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
