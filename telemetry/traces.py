"""What connects everything that a request causes: its id, and the W3C trace context.

Both are kept in context variables, stored with a run so that workers continue them, and sent to the engine
as headers. Without an OTLP endpoint, no spans are created, and a client's trace context is passed on as is.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes, AttributeValue

if TYPE_CHECKING:  # The SDK takes a third of a second, and most processes export nothing.
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,64}")
TRACEPARENT = "traceparent"
SERVICE = "workflow-catalogue"
FLUSH_MILLISECONDS = 2_000

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty without a request, such as in scheduled work."""
_propagator = TraceContextTextMapPropagator()
_exporting: list["SpanExport"] = []
"""One, if there is an endpoint."""
_UNSET, _FAILED = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


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
        context = _context_in({name.decode(): value.decode("latin-1") for name, value in sent.items()})
        if context is not None:
            otel_context.attach(context)
            identity = identity or current_trace_id()
    identity = identity or new_request_id()
    request_id.set(identity)
    return identity


_READ = frozenset({b"x-request-id", b"traceparent", b"tracestate"})


def context_of(meta: Mapping[str, Any] | None) -> otel_context.Context | None:
    """The trace context in `_meta` of an MCP message; None if it is missing or malformed."""
    if not meta or not isinstance(meta.get(TRACEPARENT), str):
        return None
    return _context_in({name: value for name, value in meta.items() if isinstance(value, str)})


def _context_in(carrier: Mapping[str, str]) -> otel_context.Context | None:
    context = _propagator.extract(carrier)
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
    carrier = {TRACEPARENT: traceparent} if traceparent else {}
    attached = otel_context.attach(_propagator.extract(carrier, context=otel_context.Context()))
    before = request_id.set(identity or "")
    try:
        yield
    finally:
        request_id.reset(before)
        otel_context.detach(attached)


def continue_task(*, traceparent: str | None, identity: str | None) -> None:
    """Like `continued`, for the rest of this thread's context."""
    carrier = {TRACEPARENT: traceparent} if traceparent else {}
    otel_context.attach(_propagator.extract(carrier, context=otel_context.Context()))
    request_id.set(identity or "")


def step(name: str, *, execution: object) -> contextlib.AbstractContextManager[object]:
    """A step of a run: a new span, or an attribute of the current one, such as that of a tools/call."""
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
    """None if tracing is off; a `parent` is still passed on. An error ends the span as failed, with its type
    but without its message, which may quote engines and callers."""
    if _exporting:
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


class SpanExport:
    """The SDK's sampler and ids, and the processor that gets the spans that have ended."""

    def __init__(self, provider: "TracerProvider", processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._sampler, self._ids, self._resource = provider.sampler, provider.id_generator, provider.resource
        self._processor, self._scope = processor, InstrumentationScope(SERVICE)
        self._readable, self._decisions = ReadableSpan, Decision

    def sample(
        self,
        name: str,
        kind: SpanKind,
        around: otel_context.Context,
        attributes: Mapping[str, str | int] | None,
    ) -> tuple[SpanContext | None, SpanContext, dict[str, Any] | None]:
        """The span above the new one, if there is one; the new one's own context; and its attributes, or None
        if it is not recorded."""
        above: SpanContext | None = trace.get_current_span(around).get_span_context()
        if above is None or not above.is_valid:
            above, trace_id = None, self._ids.generate_trace_id()
            is_random = self._ids.is_trace_id_random()
        else:
            trace_id, is_random = above.trace_id, above.trace_flags.random_trace_id
        said = self._sampler.should_sample(around, trace_id, name, kind, attributes)
        is_sampled = said.decision is self._decisions.RECORD_AND_SAMPLE
        flags = TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT
        flags |= TraceFlags.RANDOM_TRACE_ID if is_random else TraceFlags.DEFAULT
        own = SpanContext(trace_id, self._ids.generate_span_id(), False, TraceFlags(flags), said.trace_state)
        return above, own, None if said.decision is self._decisions.DROP else dict(said.attributes or {})

    def take(self, span: "CurrentSpan", end_time: int) -> None:
        ended = self._readable(
            name=span.name,
            context=span.get_span_context(),
            parent=span.above,
            resource=self._resource,
            attributes=span.attributes,
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=end_time,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(ended)

    def flush(self) -> None:
        self._processor.force_flush(FLUSH_MILLISECONDS)


class CurrentSpan(trace.Span):
    """A span of the block, sampled and numbered by the SDK and handed to its processor when the block ends.

    The SDK's own spans take four times as long, which is a twentieth of a call: see docs/decisions/0073.
    """

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: otel_context.Context | None,
        attributes: Mapping[str, str | int] | None,
    ) -> None:
        self.name, self.kind, self.status = name, kind, _UNSET
        around = otel_context.get_current() if parent is None else parent
        self._export = _exporting[0]
        self.above, self._own, recorded = self._export.sample(name, kind, around, attributes)
        self._is_recording = recorded is not None
        self.attributes = recorded or {}
        self._within = trace.set_span_in_context(self, around)

    def __enter__(self) -> "CurrentSpan":
        self.start_time = time.time_ns()
        self._before = otel_context.attach(self._within)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        otel_context.detach(self._before)
        if isinstance(error, Exception) and self.status is _UNSET:
            self.fail(type(error).__name__)
        self.end()

    def fail(self, error_type: str) -> None:
        self.attributes["error.type"] = error_type
        self.status = _FAILED

    def get_span_context(self) -> SpanContext:
        return self._own

    def is_recording(self) -> bool:
        return self._is_recording

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        self.attributes.update(attributes)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.status = status if isinstance(status, Status) else Status(status, description)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Leaves it out: what libraries would add to a span of ours may quote engines and callers."""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self.attributes["error.type"] = type(exception).__name__

    def end(self, end_time: int | None = None) -> None:
        if self._is_recording:
            self._is_recording = False
            self._export.take(self, end_time or time.time_ns())


def export_spans(*, process: str, version: str) -> None:
    """Send spans to the OTLP endpoint of the OTEL_* variables, from a separate thread. Further calls have no
    effect."""
    if _exporting:
        return
    # The import takes a third of a second.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.version": version, "catalogue.process": process})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        # OTEL_SERVICE_NAME is not set.
        resource = resource.merge(Resource({"service.name": SERVICE}))
    hashed = hash(resource)

    class HashedOnce(Resource):
        """The exporter hashes it with every span; the original writes all attributes as JSON each time."""

        def __hash__(self) -> int:
            return hashed

    provider = TracerProvider(resource=HashedOnce(dict(resource.attributes), resource.schema_url))
    processor = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)  # For the spans of libraries
    _exporting.append(SpanExport(provider, processor))


def finish_spans() -> None:
    """Send the remaining spans before the process ends."""
    for export in _exporting:
        export.flush()
