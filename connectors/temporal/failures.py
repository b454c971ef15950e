"""Temporal's failures in words: what failed, why, and what that was caused by; no stack traces."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from connectors.network.redaction import printable, shorten, shorten_error
from connectors.temporal.payloads import is_readable, values_of

DETAILS_LIMIT = 300
LONGEST_CHAIN = 20
DETAILS_BYTES = 100_000
TIMEOUTS = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "it took longer than it may",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "no worker took it in time",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "it was not done in time, with all its attempts",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "it gave no sign of life in time",
}
GAVE_UP = {
    RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED: " in all its attempts",
    RetryState.RETRY_STATE_TIMEOUT: " until its time was up",
}


def words_of_failure(failure: Failure) -> str:
    """`activity brew: OutOfTea: The kettle cannot help. (details: ...), caused by ValueError: ...`"""
    told = ""
    for link in _chain(failure):
        words, holds_the_next = _words(link)
        told += words
        if link.HasField("cause"):
            told += ": " if holds_the_next else ", caused by "
    return shorten_error(printable(told))


def failure_as_json(failure: Failure) -> dict[str, Any]:
    """All of it, for the record: stack traces, and details as values."""
    whole: dict[str, Any] = MessageToDict(failure, preserving_proto_field_name=True)
    told: Any = whole
    for link in _chain(failure):
        if link.HasField("application_failure_info") and "details" in told["application_failure_info"]:
            told["application_failure_info"]["details"] = _details(link)
        if not isinstance(told := told.get("cause"), dict):
            break
    return whole


def _chain(failure: Failure) -> Iterator[Failure]:
    for _ in range(LONGEST_CHAIN):
        yield failure
        if not failure.HasField("cause"):
            return
        failure = failure.cause


def _words(link: Failure) -> tuple[str, bool]:
    """What one link says; and whether it only tells where the next one happened."""
    match link.WhichOneof("failure_info"):
        case "activity_failure_info":
            info = link.activity_failure_info
            return f"activity {info.activity_type.name} failed{GAVE_UP.get(info.retry_state, '')}", True
        case "child_workflow_execution_failure_info":
            child = link.child_workflow_execution_failure_info
            return f"child workflow {child.workflow_type.name} failed", True
        case "nexus_operation_execution_failure_info":
            nexus = link.nexus_operation_execution_failure_info
            return f"operation {nexus.operation} of {nexus.service} failed", True
        case "timeout_failure_info":
            kind = TIMEOUTS.get(link.timeout_failure_info.timeout_type, link.message or "a timeout passed")
            return kind, False
        case "application_failure_info":
            return _of_application(link), False
        case "canceled_failure_info":
            return link.message or "cancelled", False
    return _message(link) or "no reason was given", False


def _of_application(link: Failure) -> str:
    info = link.application_failure_info
    message = _message(link)
    typed = f"{info.type}: {message}" if info.type and message else info.type or message or "no reason given"
    return f"{typed} {_bracketed(info.details.payloads)}".rstrip()


def _message(link: Failure) -> str:
    if link.HasField("encoded_attributes"):
        return "the reason is encrypted"
    return link.message.strip()


def _bracketed(details: Sequence[Payload]) -> str:
    if not details:
        return ""
    if not all(map(is_readable, details)):
        return "(with details that are no JSON)"
    values = values_of(details, limit=DETAILS_BYTES)
    return f"(details: {shorten(json.dumps(values, ensure_ascii=False), DETAILS_LIMIT)})"


def _details(link: Failure) -> Any:
    return values_of(link.application_failure_info.details.payloads, limit=DETAILS_BYTES)
