"""Pages of executions: by number, as of all lists, or from one to the next."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.lists import REFUSED, Pages, text_parameter
from executions.models import Execution
from executions.reading import UnknownCursor, page_of
from executions.rest.export import FORMAT

CURSOR = "cursor"
FURTHER_PARAMETERS = (CURSOR, FORMAT.name)
CURSOR_DESCRIPTION = (
    "Empty for the first page, the newest; `next` of each page leads to the next. Not together with `page` "
    "and `ordering`."
)


class PagesOrCursor(Pages):
    """With the parameter `cursor` pages are found by where the last one ended, and nothing is counted."""

    _by_cursor = False
    _next_cursor: str | None = None
    _address = ""

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        self._by_cursor = CURSOR in request.query_params
        if not self._by_cursor:
            return super().paginate_queryset(queryset, request, view)
        self._address = request.build_absolute_uri()
        refuse_beside(request, CURSOR, ("page", "ordering"))
        size = self.get_page_size(request) or self.page_size
        try:
            page = page_of(queryset, limit=size, cursor=request.query_params[CURSOR])
        except UnknownCursor as error:
            raise Refusal(
                400, REFUSED, kind="validation", errors=[Problem(f"?{CURSOR}", str(error))]
            ) from None
        self._next_cursor = page.next_cursor
        found: list[Execution] = page.executions
        return found

    def get_paginated_response(self, data: Any) -> Response:
        if not self._by_cursor:
            return super().get_paginated_response(data)
        following = None
        if self._next_cursor is not None:
            following = replace_query_param(self._address, CURSOR, self._next_cursor)
        return Response({"next": following, "results": data})

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        return [*super().get_schema_operation_parameters(view), text_parameter(CURSOR, CURSOR_DESCRIPTION)]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = super().get_paginated_response_schema(schema)
        told["required"] = ["results"]
        return told


def refuse_beside(request: Request, name: str, others: tuple[str, ...]) -> None:
    """Raises Refusal where parameters are given that `name` leaves no room for."""
    problems = [
        Problem(f"?{other}", f"This does not go together with `{name}`.")
        for other in others
        if other in request.query_params
    ]
    if problems:
        raise Refusal(400, REFUSED, kind="validation", errors=problems)
