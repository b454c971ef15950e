"""Django behind ASGI, with one hop to a thread for each request."""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from django.core import signals
from django.core.exceptions import RequestAborted, RequestDataTooBig
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import FileResponse, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import set_script_prefix

THREADS = 256
"""Requests at a time; some wait for a run as long as a client does."""

BYTES_IN_MEMORY = 65_536
"""Of a request body; the rest, accepted from known callers only, is kept on disk."""
Known = Callable[[dict[str, Any]], Awaitable[bool]]
"""Whether a request's headers say who sends it."""


class _UnknownCaller(Exception):
    """A large body from an unauthenticated caller, which is discarded."""


class ThreadHandler(ASGIHandler):
    """Our views and Django's middleware are synchronous: they share a thread, from the first to the last.

    Django's own handler starts a thread, and with it a database connection, for every request, and goes there
    and back for every middleware; docs/decisions/0030-django-in-one-hop.md has the figures. What a view began
    it brings to its end, also where the client is gone.
    """

    def __init__(self, *, largest_body: int, is_known: Known) -> None:
        BaseHandler.__init__(self)
        self._largest_body, self._is_known = largest_body, is_known
        self.load_middleware(is_async=False)
        self._threads = CapacityLimiter(THREADS)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        try:
            body = await self._read_body(scope, receive)
        except RequestAborted:
            return
        except RequestDataTooBig:
            await self.send_response(_tell(413, "The body is too large."), send)
            return
        with body:
            try:
                response = await to_thread.run_sync(self._respond, scope, body, limiter=self._threads)
            except CancelledError:
                # The process ends and waits no longer; the thread it cannot stop.
                response = _tell(503, "This server is going down. What was begun is on record; ask again.")
                response["Retry-After"] = "5"
            if not isinstance(response, StreamingHttpResponse):
                await self.send_response(response, send)
                return
            try:
                parts = cast(Iterator[bytes], response.streaming_content)
                response.streaming_content = self._read_in_threads(parts)
                await self.send_response(response, send)
            finally:
                await to_thread.run_sync(response.close, limiter=self._threads)

    async def _read_body(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]) -> Any:
        """On disk where it is not small. Raises RequestAborted, RequestDataTooBig.

        The body of an unauthenticated caller is discarded; an empty one is answered with a refusal.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._largest_body:
            raise RequestDataTooBig
        body = SpooledTemporaryFile(max_size=BYTES_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            async for part in self._receive_parts(scope, receive):
                body.write(part)
                if body.tell() > self._largest_body:
                    raise RequestDataTooBig
        except _UnknownCaller:
            body.truncate(0)
        except BaseException:
            body.close()
            raise
        body.seek(0)
        return body

    async def _receive_parts(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[bytes]:
        """Raises RequestAborted; and _UnknownCaller for the first part that would not stay in memory."""
        taken, known, more = 0, False, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            part, more = message.get("body", b""), message.get("more_body", False)
            taken += len(part)
            if taken > BYTES_IN_MEMORY and not known:
                known = await self._is_known(scope)
                if not known:
                    raise _UnknownCaller
            yield part

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


def _tell(status: int, words: str) -> HttpResponse:
    """As REST says it, which most of those who send much ask for."""
    return JsonResponse({"detail": words}, status=status)
