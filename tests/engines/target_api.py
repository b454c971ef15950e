"""An HTTP API for tools to call: it records exactly what arrives, and answers as it is told.

`with running_target_api() as api:` serves it on a free port, as many at once as a test wants. Every path of
`tests.engines.target_answers` is answered; `api.tell("GET", "/orders/7", Reply(...))` says otherwise.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.engines.target_answers import answer as usual
from tests.engines.target_wire import Answering, Arrived, Handler, Reply, Server, TargetApi

__all__ = ["Arrived", "Reply", "TargetApi", "running_target_api"]


@contextmanager
def running_target_api(
    *,
    answer: Answering = usual,
    required_headers: Mapping[str, str] | None = None,
    required_query: Mapping[str, str] | None = None,
) -> Iterator[TargetApi]:
    """An API that only answers who brings the required headers and query parameters along."""

    class HandlerOfThisApi(Handler):
        pass

    server = Server(("127.0.0.1", 0), HandlerOfThisApi)
    api = TargetApi(server.server_address[1], answer, required_headers or {}, required_query or {})
    HandlerOfThisApi.api = api
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
