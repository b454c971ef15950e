"""What connects everything that a request causes: its id, and the W3C trace context.

Both are kept in context variables, stored with a run so that workers continue them, and sent to the engine
as headers. Without an OTLP endpoint, no spans are created, and a client's trace context is passed on as is.
"""

import asyncio
import contextlib
import os
import random
import re
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:  # Imported where spans are exported
    from opentelemetry.sdk.trace import TracerProvider

    from telemetry.sampling import AtMost

REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,64}")
TRACEPARENT = "traceparent"
SERVICE = "workflow-catalogue"

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty without a request, such as in scheduled work."""


class _Here(NamedTuple):
    """What is asked of the current span, read once: OpenTelemetry looks it up by ten calls each time."""

    span: Span
    trace_id: str
    traceparent: str
    is_left_out: bool  # Ours, and not recorded: nor are spans within it


_here: ContextVar[_Here | None] = ContextVar("here", default=None)
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer(SERVICE)


class Exporting(NamedTuple):
    provider: "TracerProvider"
    new_traces: "AtMost | None"  # None: OpenTelemetry's own choice


_exporting: list[Exporting] = []  # One at most


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
            _enter(context)
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
    here = _here.get()
    return "" if here is None else here.trace_id


def current_traceparent() -> str | None:
    here = _here.get()
    return None if here is None else here.traceparent


class _Left(NamedTuple):
    """What restores what was current before."""

    context: Token[otel_context.Context]
    here: Token[_Here | None]

    def restore(self) -> None:
        _here.reset(self.here)
        otel_context.detach(self.context)


def _enter(context: otel_context.Context, *, is_ours: bool = False) -> _Left:
    """Make the span of that context the current one. `is_ours`: it was, though in another process."""
    span = trace.get_current_span(context)
    found = span.get_span_context()
    here = None
    if found.is_valid:
        trace_id, flags = trace.format_trace_id(found.trace_id), found.trace_flags
        parent = f"00-{trace_id}-{trace.format_span_id(found.span_id)}-{flags:02x}"
        here = _Here(span, trace_id, parent, (is_ours or not found.is_remote) and not flags.sampled)
    return _Left(otel_context.attach(context), _here.set(here))


def outgoing_headers() -> dict[str, str]:
    """For requests to engines. Without `tracestate`, which may hold data of the client's vendor."""
    headers = {}
    if identity := request_id.get():
        headers["x-request-id"] = identity
    if (parent := current_traceparent()) is not None:
        headers[TRACEPARENT] = parent
    return headers


@contextlib.contextmanager
def continued(*, traceparent: str | None, identity: str | None) -> Iterator[None]:
    """The block is part of an earlier request, or of none."""
    left, before = continue_request(traceparent=traceparent, identity=identity)
    try:
        yield
    finally:
        request_id.reset(before)
        left.restore()


def begin_apart(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that serves several requests in turn: it is part of none, not even of the one that begins it."""
    return asyncio.create_task(work, context=Context())


def continue_request(*, traceparent: str | None, identity: str | None) -> tuple[_Left, Token[str]]:
    """Like `continued`, for the rest of this thread's context. Returns what restores the one before."""
    carrier = {TRACEPARENT: traceparent} if traceparent else {}
    left = _enter(_propagator.extract(carrier, context=otel_context.Context()), is_ours=True)
    return left, request_id.set(identity or "")


def step(name: str, *, execution: object) -> contextlib.AbstractContextManager[object]:
    """A step of a run: a new span, or an attribute of the current one, such as that of a tools/call."""
    if not _exporting:
        return _NOTHING
    here = _here.get()
    if here is not None and here.span.is_recording():
        here.span.set_attribute("catalogue.execution", str(execution))
        return _NOTHING
    return span(name, attributes={"catalogue.execution": str(execution)})


def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: otel_context.Context | None = None,
    attributes: Mapping[str, str | int] | None = None,
) -> contextlib.AbstractContextManager[Span | None]:
    """None if tracing is off, or within a span of ours that is not recorded; a `parent` is still passed on.
    An error ends the span as failed, with its type but without its message, which may quote engines and
    callers."""
    if _exporting:
        here = _here.get()
        if parent is None:
            if here is not None and here.is_left_out:
                return _NOTHING
            if here is None and (limit := _exporting[0].new_traces) is not None and limit.is_used_up():
                return _within(_unrecorded())
        return _current(name, kind, parent, attributes)
    return _NOTHING if parent is None else _within(parent)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _within(context: otel_context.Context) -> Iterator[None]:
    left = _enter(context)
    try:
        yield
    finally:
        left.restore()


def _unrecorded() -> otel_context.Context:
    """A trace that is not recorded. The log and the engines get its id all the same."""
    trace_id, span_id = random.getrandbits(128) or 1, random.getrandbits(64) or 1
    span = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags()))
    return trace.set_span_in_context(span)


@contextlib.contextmanager
def _current(
    name: str,
    kind: SpanKind,
    parent: otel_context.Context | None,
    attributes: Mapping[str, str | int] | None,
) -> Iterator[Span]:
    """Unlike OpenTelemetry's own, leaves the messages of errors out."""
    span = _tracer.start_span(name, parent, kind, attributes)
    left = _enter(trace.set_span_in_context(span))
    try:
        yield span
    except Exception as error:
        if "error.type" not in (getattr(span, "attributes", None) or {}):
            fail(span, type(error).__name__)
        raise
    finally:
        left.restore()
        span.end()


def fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


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
    limit = AtMost(traces_per_second) if traces_per_second else None
    sampler = None if limit is None else ParentBased(limit)
    provider = TracerProvider(sampler, resource)
    provider.add_span_processor(BatchSpanProcessor(WithoutWords()))
    trace.set_tracer_provider(provider)
    _exporting.append(Exporting(provider, limit))


def finish_spans() -> None:
    """Send the remaining spans before the process ends."""
    for exporting in _exporting:
        exporting.provider.force_flush(2_000)  # Milliseconds
