"""A web process that counts nothing, names no requests and traces nothing: what `observed` compares with."""

import sys
from typing import Any

from prometheus_client import Counter, Histogram

from telemetry import traces


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of counting."""


if __name__ == "__main__":
    Counter.inc = _nothing  # type: ignore[method-assign]
    Histogram.observe = _nothing  # type: ignore[method-assign]
    traces.outgoing_headers = dict
    traces.current_traceparent = _nothing  # type: ignore[assignment]
    traces.current_trace_id = str

    import django

    django.setup()

    from config import monitoring
    from config.web_server import serve

    async def pass_on(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    monitoring.Observed.__call__ = pass_on  # type: ignore[method-assign]
    serve(host="127.0.0.1", port=int(sys.argv[1]), graceful_seconds=2)
