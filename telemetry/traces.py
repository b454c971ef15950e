"""Connects everything that a request causes: its id, and the W3C trace context.

Both are kept in context variables, stored with a run so that workers continue them, and sent to the engine
as headers. Without an OTLP endpoint, no spans are created, and a client's trace context is passed on as is.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:  # Imported where spans are exported
    from opentelemetry.sdk.trace import TracerProvider

REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,64}")
TRACEPARENT = "traceparent"
SERVICE = "workflow-catalogue"

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty without a request, such as in scheduled work."""
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer(SERVICE)
_exporting: list["TracerProvider"] = []  # One at most


def new_request_id() -> str:
    return os.urandom(16).hex()


def begin_request(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Adopts the request id and trace context of an HTTP request, which must run in its own context. Returns
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
    """Returns the trace context in headers or `_meta` of an MCP message; None if missing or malformed."""
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
    trace_id, span_id = trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)
    return f"00-{trace_id}-{span_id}-{found.trace_flags:02x}"


def outgoing_headers() -> dict[str, str]:
    """Returns those of requests to engines, without `tracestate`, which may hold the client vendor's data."""
    headers = {}
    if identity := request_id.get():
        headers["x-request-id"] = identity
    if (parent := current_traceparent()) is not None:
        headers[TRACEPARENT] = parent
    return headers


@contextlib.contextmanager
def continued(*, traceparent: str | None, identity: str | None) -> Iterator[None]:
    """Makes the block part of an earlier request, or of none."""
    context, before = continue_request(traceparent=traceparent, identity=identity)
    try:
        yield
    finally:
        request_id.reset(before)
        otel_context.detach(context)


def create_detached_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that serves several requests in turn: it is part of none, not even of the one that begins it."""
    return asyncio.create_task(work, context=Context())


def continue_request(
    *, traceparent: str | None, identity: str | None
) -> tuple[Token[otel_context.Context], Token[str]]:
    """Like `continued`, for the rest of this thread's context. Returns what restores the one before."""
    carrier = {TRACEPARENT: traceparent} if traceparent else {}
    context = _propagator.extract(carrier, context=otel_context.Context())
    return otel_context.attach(context), request_id.set(identity or "")


def step(name: str, *, execution: object) -> contextlib.AbstractContextManager[object]:
    """A step of a run: a new span, or an attribute of the current one, such as that of a tools/call."""
    if not _exporting:
        return _NOTHING
    present = trace.get_current_span()
    if present.is_recording():
        present.set_attribute("catalogue.execution", str(execution))
        return _NOTHING
    return span(name, attributes={"catalogue.execution": str(execution)})


def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: otel_context.Context | None = None,
    attributes: Mapping[str, str | int] | None = None,
) -> contextlib.AbstractContextManager[Span | None]:
    """Begins a span. Returns None if tracing is off; a `parent` is still passed on.

    An error ends the span as failed, with its type but without its message, which may quote engines and
    callers.
    """
    if _exporting:
        return _current(name, kind, parent, attributes)
    return _NOTHING if parent is None else _within(parent)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _within(context: otel_context.Context) -> Iterator[None]:
    left = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(left)


@contextlib.contextmanager
def _current(
    name: str,
    kind: SpanKind,
    parent: otel_context.Context | None,
    attributes: Mapping[str, str | int] | None,
) -> Iterator[Span]:
    """Leaves the messages of errors out."""
    with _tracer.start_as_current_span(
        name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            if "error.type" not in (getattr(span, "attributes", None) or {}):
                fail(span, type(error).__name__)
            raise


def fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def export_spans(*, process: str, version: str, traces_per_second: float) -> None:
    """Sends spans to the OTLP endpoint of the OTEL_* variables, from a separate thread. Further calls have no
    effect."""
    if _exporting:
        return
    # The import takes a third of a second.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased

    from telemetry.sampling import AtMost

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
    # Otherwise OpenTelemetry's own choice.
    sampler = ParentBased(AtMost(traces_per_second)) if traces_per_second else None
    provider = TracerProvider(sampler, resource)
    provider.add_span_processor(BatchSpanProcessor(WithoutWords()))
    trace.set_tracer_provider(provider)
    _exporting.append(provider)


def finish_spans() -> None:
    """Sends the remaining spans before the process ends."""
    for provider in _exporting:
        provider.force_flush(2_000)  # Milliseconds
