"""A gRPC gateway before a Temporal server: it asks for a key, and loses answers where a test wants that."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc

THREADS = 50
CONNECTING = "GetSystemInfo"
"""What the SDK asks first on every connection."""


class Gateway(grpc.GenericRpcHandler):
    """Hands every request on as it came.

    `keys`: those that it accepts, empty for any. `swallowed`: requests that it hands on, and whose answers it
    keeps; `refused`: requests that it answers itself, with the status given, so many times. `garbage`: what
    it answers all requests with except the first on a connection, if it is set.
    """

    def __init__(self, upstream: grpc.Channel) -> None:
        self.port = 0
        self.keys: set[str] = set()
        self.swallowed: set[str] = set()
        self.swallows_all = False
        self.garbage: bytes | None = None
        self.refused: dict[str, list[grpc.StatusCode]] = {}
        self.seen: Counter[str] = Counter()
        self.keys_seen: list[str] = []
        self.has_swallowed = Event()
        self.ends = Event()
        self._upstream = upstream

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        name = method.rpartition("/")[2]
        sent = dict(handler_call_details.invocation_metadata)

        def hand_on(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.seen[name] += 1
            self._check_key(sent.get("authorization", ""), context)
            if statuses := self.refused.get(name):
                context.abort(statuses.pop(0), "refused by the test")
            if self.garbage is not None and name != CONNECTING:
                return self.garbage
            answer, failure = self._ask(method, request, context)
            if name in self.swallowed or (self.swallows_all and name != CONNECTING):
                self.has_swallowed.set()
                self.ends.wait()
            if failure is not None:
                context.abort(failure.code(), failure.details())
            return answer

        return grpc.unary_unary_rpc_method_handler(hand_on)

    def _check_key(self, authorization: str, context: grpc.ServicerContext) -> None:
        key = authorization.removeprefix("Bearer ")
        self.keys_seen.append(key)
        if self.keys and key not in self.keys:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"invalid key {key!r}")

    def _ask(self, method: str, request: bytes, context: grpc.ServicerContext) -> tuple[bytes, Any]:
        left = context.time_remaining()
        call = self._upstream.unary_unary(method)
        try:
            return call(request, timeout=min(left, 60) if left else 60), None
        except grpc.RpcError as error:
            return b"", error


@contextmanager
def gateway_to(address: str, *, port: int = 0) -> Iterator[Gateway]:
    upstream = grpc.insecure_channel(address)
    gateway = Gateway(upstream)
    server = grpc.server(
        ThreadPoolExecutor(max_workers=THREADS),
        handlers=[gateway],
        options=[("grpc.so_reuseport", 0)],
    )
    gateway.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield gateway
    finally:
        gateway.ends.set()
        server.stop(grace=0).wait()
        upstream.close()
