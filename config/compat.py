"""Uses of private names of other packages; tests/config/test_private_names.py fails when one is gone."""

from collections.abc import Callable
from typing import Any

from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class AnnouncingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which says what it is going to answer."""

    def answer_begins(self, cycle: RequestResponseCycle) -> None:
        """Called before the application gets the request."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answer_begins(cycle)
        super()._start_asgi_task(cycle, app)


def note_handler(response: HttpResponseBase, handler: type[BaseHandler]) -> None:
    """Make the handler the sender of `request_finished`, as Django's own handlers do."""
    response._handler_class = handler  # type: ignore[attr-defined]


def check_connections_with(pool: Any, check: Callable[[Any], None]) -> None:
    """Make a psycopg pool check connections by `check`, instead of the check that Django passes."""
    pool._check = check
