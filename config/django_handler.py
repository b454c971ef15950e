"""Django behind ASGI, with one hop to a thread for each request."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import FileResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import set_script_prefix

THREADS = 256
"""Requests at a time; some wait for a run as long as a client does."""


class ThreadHandler(ASGIHandler):
    """Our views and Django's middleware are synchronous: they share a thread, from the first to the last.

    Django's own handler starts a thread, and with it a database connection, for every request, and goes there
    and back for every middleware; docs/decisions/0030-django-in-one-hop.md has the figures. What a view began
    it brings to its end, also where the client is gone.
    """

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads = CapacityLimiter(THREADS)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            response = await to_thread.run_sync(self._respond, scope, body, limiter=self._threads)
            if not isinstance(response, StreamingHttpResponse):
                await self.send_response(response, send)
                return
            try:
                parts = cast(Iterator[bytes], response.streaming_content)
                response.streaming_content = self._read_in_threads(parts)
                await self.send_response(response, send)
            finally:
                await to_thread.run_sync(response.close, limiter=self._threads)

    def _respond(self, scope: dict[str, Any], body: Any) -> HttpResponseBase:
        """What Django answers; the thread's database connection is free again afterwards."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, problem = self.create_request(scope, body)
        response: Any = problem if request is None else self.get_response(request)
        response._handler_class = self.__class__
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if not response.streaming:
            response.close()
        return response  # type: ignore[no-any-return]

    async def _read_in_threads(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (part := await to_thread.run_sync(next, parts, None, limiter=self._threads)) is not None:
            yield part
