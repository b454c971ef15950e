"""The base of every resource of the API: errors in one shape, strict bodies, and lists with strict filters.

REST framework imports this module while it defines its own views; `views` builds upon those.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from django import forms
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.exceptions import ValidationError as ModelValidationError
from django.core.signals import got_request_exception
from django.db.models import Model, QuerySet
from django.http import Http404
from django_filters import (  # type: ignore[import-untyped]
    BooleanFilter,
    CharFilter,
    ChoiceFilter,
    FilterSet,
    IsoDateTimeFilter,
    MultipleChoiceFilter,
    OrderingFilter,
)
from django_filters.fields import IsoDateTimeField  # type: ignore[import-untyped]
from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema_field
from loguru import logger
from rest_framework import exceptions, serializers, status
from rest_framework.pagination import PageNumberPagination
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import as_serializer_error
from rest_framework.utils.urls import remove_query_param, replace_query_param

from access.callers import MAX_NAMES
from access.permissions import InsufficientScope
from catalogue.database_problems import TAKEN, describe_outage, is_taken, is_unusable, log_outage
from catalogue.long_lists import (
    COUNTED,
    MAX_FOUND,
    BoundedPaginator,
    UnknownCursor,
    cursor_after,
    newest_of,
    page_of,
    search_problem,
)
from connectors.formats.json import HalfCharacters, UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of
from connectors.formats.lists import split_list

if TYPE_CHECKING:
    from rest_framework.views import APIView

Row = TypeVar("Row", bound=Model)
MAX_PROBLEMS = 50
NOT_BOOLEAN = "Say true or false."
NOT_VALID = "The request is not valid and nothing was changed. `errors` has each invalid field."
SIGN_IN = "Send an access token as `Authorization: Bearer <token>`, or sign in to the admin as staff."
TOO_LARGE = "The request's body is too large; CATALOGUE_MAX_REQUEST_BYTES sets the limit."


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    """JSON Pointer into the body, or `?name` for a query parameter; empty for the request as a whole."""
    message: str


class Refusal(exceptions.APIException):
    def __init__(
        self, status_code: int, detail: str, *, kind: str = "", errors: Iterable[Problem] = (), **more: Any
    ) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.kind = kind  # Empty: the usual one of the status
        self.errors = list(errors)[:MAX_PROBLEMS]
        self.wait: int | None = None  # Seconds, for `Retry-After`
        self.more = more  # Further fields of the answer

    @classmethod
    def invalid(cls, detail: str, errors: Iterable[Problem] = ()) -> "Refusal":
        """Refuses a request that its caller must correct."""
        return cls(400, detail, kind="validation", errors=errors)

    @classmethod
    def of_parameter(cls, name: str, message: str) -> "Refusal":
        return cls.invalid(REFUSED, [Problem(f"?{name}", message)])

    @classmethod
    def of_settings(cls, error: ModelValidationError) -> "Refusal":
        problems = list(find_problems(as_serializer_error(error)))
        message = "; ".join(f"{problem.path[1:]}: {problem.message}" for problem in problems)
        return cls(400, f"Nothing was changed. {message}", kind="configuration", errors=problems)


class PlaceSerializer(serializers.Serializer[Any]):
    """One offending place of a request."""

    path = serializers.CharField(
        help_text="JSON Pointer into the body, such as `/arguments/text`, or `?name` for a query parameter."
    )
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """The format of every error."""

    detail = serializers.CharField(help_text="What went wrong and what to do, in a sentence.")
    kind = serializers.ChoiceField(
        choices=["discovery", "validation", "execution", "timeout", "configuration"],
        help_text="Which of the five kinds of error it is. Without a more specific one, `validation` is a "
        "request to correct, `configuration` one that somebody has to allow, `execution` one to send again "
        "later, and `timeout` one whose outcome took too long.",
    )
    errors = PlaceSerializer(many=True, required=False)  # type: ignore[assignment]
    execution_id = serializers.UUIDField(
        required=False, help_text="The execution that the idempotency key belongs to."
    )
    request_id = serializers.UUIDField(
        required=False, help_text="The natural-language request that the idempotency key belongs to."
    )


def as_problem(why: str) -> OpenApiResponse:
    """Describes an error, and what it says, for the API's description."""
    return OpenApiResponse(ProblemSerializer, why)


def answer_with_problem(error: Exception, context: dict[str, Any]) -> Response:
    """Returns 503 if the database cannot be queried, 409 if another request was faster, and 500 for any other
    unexpected exception."""
    from rest_framework.views import exception_handler

    request = context["request"]
    # Also for views with another renderer, such as the API's description in YAML.
    request.accepted_renderer = JSONRenderer()
    request.accepted_media_type = JSONRenderer.media_type
    expected = _as_expected(error, context)
    answer = exception_handler(expected, context)
    if is_unusable(error):
        log_outage(f"{request.method} {request.path}", error)
        code = status.HTTP_503_SERVICE_UNAVAILABLE
        body = problem_body(code, describe_outage(error, method=request.method))
        return Response(body, code, headers={"Retry-After": "5"})
    if answer is None and is_taken(error):
        taken = status.HTTP_409_CONFLICT
        return Response(problem_body(taken, TAKEN), taken)
    if answer is None:
        logger.opt(exception=error).error("A request to {} failed", request.path)
        # As Django does for uncaught exceptions, so that receivers of its signal hear of it.
        got_request_exception.send(sender=None, request=request)
        failed = status.HTTP_500_INTERNAL_SERVER_ERROR
        return Response(problem_body(failed, "An internal error. The server's log has the details."), failed)
    answer.data = _body(expected, answer.status_code)
    if isinstance(error, InsufficientScope):
        answer["WWW-Authenticate"] = request.successful_authenticator.refuse_scope(
            request, request.auth, error.scope.value
        )
    return answer


def find_problems(detail: Any, path: str = "") -> Iterator[Problem]:
    if isinstance(detail, dict):
        for key, inner in detail.items():
            inner_path = path if key == "non_field_errors" else f"{path}{pointer_of([key])}"
            yield from find_problems(inner, inner_path)
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
    if isinstance(error, exceptions.UnsupportedMediaType):
        read = " or ".join(parser.media_type for parser in context["view"].get_parsers())
        return exceptions.UnsupportedMediaType("", f"Send the body as Content-Type: {read}.")
    if isinstance(error, exceptions.NotAcceptable):
        written = " or ".join(renderer.media_type for renderer in context["view"].get_renderers())
        return exceptions.NotAcceptable(f"Send Accept: {written}. The response has no other media type.")
    return error


def _body(error: Exception, code: int) -> dict[str, Any]:
    if isinstance(error, Refusal):
        return problem_body(code, str(error.detail), error.kind, error.errors) | error.more
    if isinstance(error, exceptions.ValidationError):
        return problem_body(code, NOT_VALID, errors=find_problems(error.detail))
    if isinstance(error, exceptions.NotAuthenticated):
        return problem_body(code, SIGN_IN)
    return problem_body(code, str(getattr(error, "detail", error)))


def problem_body(code: int, detail: str, kind: str = "", errors: Iterable[Problem] = ()) -> dict[str, Any]:
    """Returns the body of every error of the API; see ProblemSerializer."""
    listed = [{"path": problem.path, "message": problem.message} for problem in errors]
    body: dict[str, Any] = {"detail": detail, "kind": kind or _usual_kind(code)}
    if listed:
        body["errors"] = listed[:MAX_PROBLEMS]
    return body


def _usual_kind(code: int) -> str:
    if code in (status.HTTP_401_UNAUTHORIZED, status.HTTP_403_FORBIDDEN):
        return "configuration"
    if code == status.HTTP_504_GATEWAY_TIMEOUT:
        return "timeout"
    return "execution" if code == status.HTTP_429_TOO_MANY_REQUESTS or code >= 500 else "validation"


SHOWN_NAME = 100
SHOWN_NAMES = 20


def read_bounded(stream: IO[bytes]) -> bytes:
    """Raises Refusal for a body that is too large."""
    limit: int = settings.CATALOGUE.max_request_bytes
    body = stream.read(limit + 1)
    if len(body) > limit:
        raise Refusal(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, TOO_LARGE, kind="validation")
    return body


class BoundedJSONParser(BaseParser):
    """UTF-8 of a bounded size and nesting."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return parse_json(read_bounded(stream), given=True)
        except HalfCharacters as error:
            problems = [Problem(place, fault) for place, fault in error.places]
            raise Refusal.invalid(NOT_VALID, problems) from None
        except UnreadableJSON as error:
            raise Refusal.invalid(f"The request's body cannot be read. {error}") from None


class StrictSerializer(serializers.Serializer[Any]):
    # Refuses unknown fields, also misspelt ones. No docstring: the API would describe request bodies by it.

    def to_internal_value(self, data: Any) -> Any:
        problems = self._strict_problems(data) if isinstance(data, Mapping) else {}
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            raise serializers.ValidationError({**cast(dict[str, Any], error.detail), **problems}) from None
        if problems:
            raise serializers.ValidationError(problems)
        return value

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for one in (getattr(one, "child", one) for one in fields.values()):
            if isinstance(one, serializers.ChoiceField):
                choices = ", ".join(map(str, one.choices))
                one.error_messages["invalid_choice"] = (
                    f'"{{input}}" is not a valid choice. The choices are {choices}.'
                )
        return fields

    def _strict_problems(self, data: Mapping[str, Any]) -> dict[str, list[str]]:
        unknown = [name for name in data if name not in self.fields]
        message = f"Unknown field. The fields are {', '.join(self.fields)}."
        problems = {str(name)[:SHOWN_NAME]: [message] for name in unknown[:SHOWN_NAMES]}
        # REST framework takes 0, "no" and "off" for false, which only forms need.
        boolean = {name for name, one in self.fields.items() if isinstance(one, serializers.BooleanField)}
        vague = [name for name in data if name in boolean and not isinstance(data[name], bool | None)]
        return problems | {name: [NOT_BOOLEAN] for name in vague}


class RowSerializer(serializers.ModelSerializer[Row]):
    # Shows a row; none of its fields is read from a request. No docstring, as above.

    def get_extra_kwargs(self) -> dict[str, Any]:
        given = super().get_extra_kwargs()
        return {name: {**given.get(name, {}), "read_only": True} for name in self.Meta.fields}


REFUSED = "The list cannot be filtered like this. `errors` has each invalid parameter."
BOOLEANS = {"": None, "true": True, "1": True, "false": False, "0": False}
FIELDS = "fields"


class Pages(PageNumberPagination):
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
    page_size_query_description = f"Rows per page, from 1 to {max_page_size}."
    invalid_page_message = "There is no such page: begin with page=1 and follow `next`."
    parameters = (PageNumberPagination.page_query_param, page_size_query_param, FIELDS)


def keep_fields(serializer: Any, request: Request) -> Any:
    """Drop the other fields, of one object or of each of a list. Raises Refusal."""
    shown = getattr(serializer, "child", serializer)
    for name in shown.fields.keys() - wanted_fields(request, shown.fields):
        del shown.fields[name]
    return serializer


def wanted_fields(request: Request, known: Collection[str]) -> set[str]:
    """Raises Refusal."""
    wanted = set(split_list(",".join(request.query_params.getlist(FIELDS))))
    if unknown := sorted(wanted - set(known)):
        message = f"Unknown field {unknown[0][:100]}. The fields are {', '.join(known)}."
        raise Refusal.of_parameter(FIELDS, message)
    if not wanted:
        raise Refusal.of_parameter(FIELDS, "Name at least one field.")
    return wanted


CURSOR = "cursor"
UNKNOWN_CURSOR = "Unknown cursor: follow `next`, or begin again without one."
CURSOR_DESCRIPTION = (
    "Empty for the first page, the newest; `next` of each page leads to the next. Not together with `page` "
    "and `ordering`."
)


class LongPages(Pages):
    """Serves views with `newest_by`, the time by which the rows are sorted, the newest first. Numbered pages
    reach as far as rows are counted, and `next` continues by position. Other orders cover the same number of
    the newest rows."""

    extra_parameters = (CURSOR,)
    invalid_page_message = (
        f"There is no such page. Pages by number reach {COUNTED:,} rows: follow `next`, or begin with an "
        "empty `cursor`."
    )
    _by_cursor = False
    _next_cursor: str | None = None
    _address = ""

    def paginate_queryset(self, queryset: Any, request: Request, view: "APIView | None" = None) -> Any:
        by = str(getattr(view, "newest_by", ""))
        self._address = remove_query_param(request.build_absolute_uri(), self.page_query_param)
        self._by_cursor = CURSOR in request.query_params
        if self._by_cursor:
            refuse_together_with(request, CURSOR, (self.page_query_param, "ordering"))
            size = self.get_page_size(request) or self.page_size
            try:
                found = page_of(queryset, by=by, limit=size, cursor=request.query_params[CURSOR])
            except UnknownCursor:
                raise Refusal.of_parameter(CURSOR, UNKNOWN_CURSOR) from None
            self._next_cursor = found.next_cursor
            return found.rows
        order = queryset.query.order_by[0]
        if order.removeprefix("-") != by:
            queryset = newest_of(queryset, by)
        self.django_paginator_class = partial(BoundedPaginator, by=by)  # type: ignore[assignment]
        rows: Any = super().paginate_queryset(queryset, request, view)
        page: Any = self.page
        if order == f"-{by}" and page.paginator.goes_on and not page.has_next():
            self._next_cursor = cursor_after(page[-1], by)
        return rows

    def get_next_link(self) -> str | None:
        if self._next_cursor is not None:
            return replace_query_param(self._address, CURSOR, self._next_cursor)
        return None if self._by_cursor else super().get_next_link()

    def get_paginated_response(self, data: Any) -> Response:
        if self._by_cursor:
            return Response({"next": self.get_next_link(), "results": data})
        numbered: Response = super().get_paginated_response(data)
        page: Any = self.page
        numbered.data = {"count_is_exact": not page.paginator.has_more, **numbered.data}
        return numbered

    def get_schema_operation_parameters(self, view: "APIView") -> list[dict[str, Any]]:
        cursor = {"name": CURSOR, "in": "query", "description": CURSOR_DESCRIPTION}
        return [*super().get_schema_operation_parameters(view), cursor | {"schema": {"type": "string"}}]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = super().get_paginated_response_schema(schema)
        told["required"] = ["results"]
        told["properties"]["count"]["description"] = f"At most {COUNTED:,}; absent with `cursor`."
        told["properties"]["count_is_exact"] = {
            "type": "boolean",
            "description": "False: there are more than `count`. In the usual order `next` leads to all of "
            f"them; any other order is that of so many of the newest. A search ends at {MAX_FOUND:,} rows "
            "and then says false, too: there may be more.",
        }
        return told


def refuse_together_with(request: Request, name: str, others: tuple[str, ...]) -> None:
    """Raises Refusal for parameters that exclude `name`."""
    problems = [
        Problem(f"?{other}", f"This cannot be combined with `{name}`.")
        for other in others
        if other in request.query_params
    ]
    if problems:
        raise Refusal.invalid(REFUSED, problems)


class StableOrdering(OrderingFilter):  # type: ignore[misc]
    """Adds the key as the last criterion, so that no page repeats or misses a row."""

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        ordered: QuerySet[Any] = super().filter(qs, value)
        return ordered.order_by(*ordered.query.order_by, "pk") if value else ordered


def check_search(text: str) -> None:
    if problem := search_problem(text):
        raise forms.ValidationError(problem)


SearchFilter = partial(CharFilter, validators=[check_search])
"""Searches the database for a text within others."""


class StrictBooleanField(forms.Field):
    """Django's NullBooleanField ignores unknown values."""

    def to_python(self, value: Any) -> bool | None:
        text = (value or "").strip().lower()
        if text not in BOOLEANS:
            raise forms.ValidationError(NOT_BOOLEAN)
        return BOOLEANS[text]


class StrictBooleanFilter(BooleanFilter):  # type: ignore[misc]
    field_class = StrictBooleanField


class ChosenFilter(StrictBooleanFilter):
    """The rows that a manager's method chooses, or all others."""

    def __init__(self, choose: Callable[[], QuerySet[Any]], **options: Any) -> None:
        super().__init__(**options)
        self._choose = choose

    def filter(self, qs: QuerySet[Any], value: bool | None) -> QuerySet[Any]:
        if value is None:
            return qs
        keys = self._choose().values("pk")
        return qs.filter(pk__in=keys) if value else qs.exclude(pk__in=keys)


class StrictFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """Refuses unknown parameters, so that a misspelt filter is not ignored."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: "APIView") -> QuerySet[Any]:
        filterset: FilterSet | None = self.get_filterset(request, queryset, view)
        if filterset is None and getattr(view, "action", "") != "list":
            return queryset
        filters = {} if filterset is None else filterset.filters
        given, known = request.query_params, [*filters, *Pages.parameters]
        for one in (getattr(view, "paginator", None), view):
            known += getattr(one, "extra_parameters", ())
        several = [name for name, one in filters.items() if isinstance(one, MultipleChoiceFilter)]
        choices = [name for name, one in filters.items() if isinstance(one, ChoiceFilter)]
        empty = [name for name in choices if "" in given.getlist(name)]
        problems = [
            *_misused(request, known, several=[FIELDS, *several]),
            *_bad_page_size(request),
            *(Problem(f"?{name}", "Give a value, or omit the parameter.") for name in empty),
            *_bad_values(filterset),
        ]
        if problems:
            raise Refusal.invalid(REFUSED, problems)
        narrowed: QuerySet[Any] = queryset if filterset is None else filterset.qs
        return narrowed


def _misused(request: Request, known: Collection[str], *, several: Collection[str]) -> Iterator[Problem]:
    """Unknown parameters, and those that are sent again although they are none of `several`."""
    message = f"Unknown parameter. The parameters are {', '.join(known)}."
    for name, values in request.query_params.lists():
        if name not in known:
            yield Problem(f"?{name[:100]}", message)
        elif name not in several and len(values) > 1:
            yield Problem(f"?{name}", "Send this parameter only once; it takes a single value.")


def check_parameters(request: Request, *known: OpenApiParameter) -> None:
    """Checks the parameters of addresses that are no lists. Raises Refusal."""
    several = [parameter.name for parameter in known if parameter.many]
    if problems := list(_misused(request, [parameter.name for parameter in known], several=several)):
        raise Refusal.invalid(problems[0].message, problems)


def is_set(request: Request, parameter: OpenApiParameter) -> bool:
    """Raises Refusal."""
    text = request.query_params.get(parameter.name, "").strip().lower()
    if text not in BOOLEANS:
        problem = Problem(f"?{parameter.name}", NOT_BOOLEAN)
        raise Refusal.invalid(NOT_BOOLEAN, [problem])
    return bool(BOOLEANS[text])


def _bad_page_size(request: Request) -> list[Problem]:
    name, largest = Pages.page_size_query_param, Pages.max_page_size
    size = request.query_params.get(name, str(largest))
    if re.fullmatch("[0-9]{1,9}", size) and 1 <= int(size) <= largest:
        return []
    return [Problem(f"?{name}", f"This must be a whole number from 1 to {largest}.")]


def _bad_values(filterset: FilterSet | None) -> list[Problem]:
    if filterset is None or filterset.is_valid():
        return []
    return [
        Problem(f"?{name}", f"{message}{_hint(filterset.form.fields[name])}")
        for name, messages in filterset.errors.items()
        for message in messages
    ]


class MomentField(IsoDateTimeField):  # type: ignore[misc]
    def clean(self, value: Any) -> Any:
        """Refuses a time that lies outside the calendar in UTC, in which the database compares it."""
        moment = super().clean(value)
        try:
            return moment and moment.astimezone(UTC)
        except OverflowError:
            raise ModelValidationError(self.error_messages["invalid"]) from None


class MomentFilter(IsoDateTimeFilter):  # type: ignore[misc]
    field_class = MomentField


def _hint(field: forms.Field) -> str:
    if isinstance(field, forms.DateTimeField):
        return " Write it as 2026-11-25T09:30:00Z, and a plus sign as %2B."
    if not isinstance(field, forms.ChoiceField):
        return ""
    choices: Any = field.choices
    return f" The choices are {', '.join(str(value) for value, _ in choices if value)}."


JSON_OBJECT = {"type": "object", "additionalProperties": True}


@extend_schema_field(JSON_OBJECT)
class JSONObjectField(serializers.DictField):
    """Any JSON object."""

    default_error_messages: ClassVar[dict[str, Any]] = {"not_a_dict": "Must be a JSON object."}


class StringListField(serializers.ListField):
    child = serializers.CharField()


class SecretsField(serializers.DictField):
    """Secret settings by their names, which no answer shows."""

    def __init__(self, help_text: str, *, allow_blank: bool = False, **options: Any) -> None:
        child = serializers.CharField(trim_whitespace=False, allow_blank=allow_blank)
        super().__init__(child=child, write_only=True, help_text=help_text, **options)


RESERVED_FOR = (
    "The users and groups that may use it, such as `user:ada` and `group:Finance`. Empty: everyone who may "
    "use workflows."
)


class ReservedForField(serializers.ListField):
    """Names of users and groups."""

    def __init__(self, **options: Any) -> None:
        child = serializers.CharField(max_length=200)
        super().__init__(child=child, max_length=MAX_NAMES, help_text=RESERVED_FOR, **options)


def rename(columns: Mapping[str, str], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`extra_kwargs` of fields with other names than their columns, and of `more`."""
    renamed = {name: {"source": column} for name, column in columns.items() if name != column}
    return {name: renamed.get(name, {}) | more.get(name, {}) for name in (*renamed, *more)}


def set_defaults(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, value in defaults.items():
        # Each body gets a list of its own.
        fields[name].default = type(value) if isinstance(value, list | dict) else value
        fields[name].required = False


MAX_LIMIT = 1_000_000
