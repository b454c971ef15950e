"""What connects everything that a request causes: its id, and the W3C trace context.

Both are kept in context variables, stored with a run so that workers continue them, and sent to the engine
as headers. Without an OTLP endpoint, no spans are created, and a client's trace context is passed on as is.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, Token
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,64}")
TRACEPARENT = "traceparent"
SERVICE = "workflow-catalogue"
FLUSH_MILLISECONDS = 2_000

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty without a request, such as in scheduled work."""
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer(SERVICE)
_exporting: list[Any] = []  # The provider of spans, if there is one


def new_request_id() -> str:
    return os.urandom(16).hex()


def begin_request(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Adopt the request id and trace context of an HTTP request, which must run in its own context. Returns
    the id: the client's, if it is usable, else that of its trace, else a new one."""
    sent = {name: value for name, value in headers if name in _READ}
    identity = sent.get(b"x-request-id", b"").decode("latin-1")
    if not REQUEST_ID.fullmatch(identity):
        identity = ""
    if b"traceparent" in sent:
        context = context_of({name.decode(): value.decode("latin-1") for name, value in sent.items()})
        if context is not None:
            otel_context.attach(context)
            identity = identity or current_trace_id()
    identity = identity or new_request_id()
    request_id.set(identity)
    return identity


_READ = frozenset({b"x-request-id", b"traceparent", b"tracestate"})


def context_of(meta: Mapping[str, Any] | None) -> otel_context.Context | None:
    """The trace context in headers or in `_meta` of an MCP message; None if it is missing or malformed."""
    if not meta or not isinstance(meta.get(TRACEPARENT), str):
        return None
    context = _propagator.extract({name: value for name, value in meta.items() if isinstance(value, str)})
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def current_trace_id() -> str:
    found = trace.get_current_span().get_span_context()
    return trace.format_trace_id(found.trace_id) if found.is_valid else ""


def current_traceparent() -> str | None:
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def outgoing_headers() -> dict[str, str]:
    """For requests to engines. Without `tracestate`, which may hold data of the client's vendor."""
    headers = {}
    if identity := request_id.get():
        headers[REQUEST_ID_HEADER] = identity
    if (parent := current_traceparent()) is not None:
        headers[TRACEPARENT] = parent
    return headers


@contextlib.contextmanager
def continued(*, traceparent: str | None, identity: str | None) -> Iterator[None]:
    """The block is part of an earlier request, or of none."""
    attached, before = continue_request(traceparent=traceparent, identity=identity)
    try:
        yield
    finally:
        request_id.reset(before)
        otel_context.detach(attached)


def begin_apart(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that serves several requests in turn: it is part of none, not even of the one that begins it."""
    return asyncio.create_task(work, context=Context())


def continue_request(
    *, traceparent: str | None, identity: str | None
) -> tuple[Token[otel_context.Context], Token[str]]:
    """Like `continued`, for the rest of this thread's context. Returns what restores the one before."""
    carrier = {TRACEPARENT: traceparent} if traceparent else {}
    attached = otel_context.attach(_propagator.extract(carrier, context=otel_context.Context()))
    return attached, request_id.set(identity or "")


def step(name: str, *, execution: object) -> contextlib.AbstractContextManager[object]:
    """A step of a run: a new span, or an attribute of the current one, such as that of a tools/call."""
    if not _exporting:
        return _NOTHING
    around = trace.get_current_span()
    if around.is_recording():
        around.set_attribute("catalogue.execution", str(execution))
        return _NOTHING
    return span(name, attributes={"catalogue.execution": str(execution)})


def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: otel_context.Context | None = None,
    attributes: Mapping[str, str | int] | None = None,
) -> contextlib.AbstractContextManager["CurrentSpan | None"]:
    """None if tracing is off, or within a span of ours that is not recorded; a `parent` is still passed on.
    An error ends the span as failed, with its type but without its message, which may quote engines and
    callers."""
    if _exporting:
        around = trace.get_current_span().get_span_context()
        is_ours = around.is_valid and not around.is_remote
        if parent is None and is_ours and not around.trace_flags.sampled:
            return _NOTHING
        return CurrentSpan(name, kind, parent, attributes)
    return _NOTHING if parent is None else _within(parent)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _within(context: otel_context.Context) -> Iterator[None]:
    before = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(before)


class CurrentSpan:
    """Like `start_as_current_span`, which nests three generators, in three quarters of the time."""

    __slots__ = ("_attributes", "_before", "_has_failed", "_kind", "_name", "_parent", "_span")

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: otel_context.Context | None,
        attributes: Mapping[str, str | int] | None,
    ) -> None:
        self._name, self._kind, self._parent, self._attributes = name, kind, parent, attributes
        self._has_failed = False

    def __enter__(self) -> "CurrentSpan":
        self._span = _tracer.start_span(
            self._name,
            self._parent,
            self._kind,
            self._attributes,
            record_exception=False,
            set_status_on_exception=False,
        )
        self._before = otel_context.attach(trace.set_span_in_context(self._span))
        return self

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        self._has_failed = True
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        otel_context.detach(self._before)
        if isinstance(error, Exception) and not self._has_failed:
            self.fail(type(error).__name__)
        self._span.end()


def export_spans(*, process: str, version: str, traces_per_second: float) -> None:
    """Send spans to the OTLP endpoint of the OTEL_* variables, from a separate thread. Further calls have no
    effect."""
    if _exporting:
        return
    # The import takes a third of a second.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    from telemetry.sampling import sampler

    class WithoutWords(OTLPSpanExporter):
        """Spans of the MCP SDK have the messages of errors, which may quote credentials and arguments."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return super().export([_without_words(span) for span in spans])

    def _without_words(span: ReadableSpan) -> ReadableSpan:
        if not (span.status.description or span.events):
            return span
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=span.attributes,
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    resource = Resource.create({"service.version": version, "catalogue.process": process})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        # OTEL_SERVICE_NAME is not set.
        resource = resource.merge(Resource({"service.name": SERVICE}))
    hashed = hash(resource)

    class HashedOnce(Resource):
        """The exporter hashes it with every span; the original writes all attributes as JSON each time."""

        def __hash__(self) -> int:
            return hashed

    provider = TracerProvider(
        sampler(traces_per_second), HashedOnce(dict(resource.attributes), resource.schema_url)
    )
    provider.add_span_processor(BatchSpanProcessor(WithoutWords()))
    trace.set_tracer_provider(provider)
    _exporting.append(provider)


def finish_spans() -> None:
    """Send the remaining spans before the process ends."""
    for provider in _exporting:
        provider.force_flush(FLUSH_MILLISECONDS)
