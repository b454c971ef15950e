"""Uses of private names of other packages, which change without notice."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class AnnouncingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which says what it is going to answer, and ignores offers of another protocol.

    Its parser takes a request with such an offer to end with its head, and loses the body. Java's HTTP
    client offers HTTP/2 with every first request. Therefore the head is parsed again without the offer."""

    unread = b""

    def data_received(self, data: bytes) -> None:
        self.unread = data
        while data := self.unread:
            self.fed, self.unread = data, b""
            super().data_received(data)

    def on_headers_complete(self) -> None:
        if not self.is_offer:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.is_offer:
            super().on_message_complete()

    @property
    def is_offer(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Called for the exception by which the parser says where the head ends."""
        offer: Any = sys.exc_info()[1]
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.unread = b"\r\n".join([*lines, b"", b""]) + self.fed[offer.args[0] :]

    def answer_begins(self, cycle: RequestResponseCycle) -> None:
        """Called before the application gets the request."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answer_begins(cycle)
        super()._start_asgi_task(cycle, app)


def note_handler(response: HttpResponseBase, handler: type[BaseHandler]) -> None:
    """Make the handler the sender of `request_finished`, as Django's own handlers do."""
    assert hasattr(response, "_handler_class")
    response._handler_class = handler


def check_connections_with(pool: "ConnectionPool[Any]", check: Callable[[Any], None]) -> None:
    """Make a psycopg pool check connections by `check`, instead of the check that Django passes."""
    pool._check = check
