"""Selects the traces to record. Importing OpenTelemetry's SDK takes a third of a second, so processes that
trace nothing do not."""

import threading
import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes


class AtMost(Sampler):
    """Records a new trace unless so many have begun within a second.

    Within ParentBased: a trace that a client begins is recorded if the client says so.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second, self._most = per_second, max(per_second, 1.0)
        self._left, self._at = self._most, time.monotonic()
        self._lock = threading.Lock()

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        before = get_current_span(parent_context).get_span_context().trace_state
        with self._lock:
            now = time.monotonic()
            self._left = min(self._left + (now - self._at) * self._per_second, self._most)
            self._at = now
            if self._left < 1:
                return SamplingResult(Decision.DROP, trace_state=before)
            self._left -= 1
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, before)

    def get_description(self) -> str:
        return f"AtMost({self._per_second:g} a second)"
