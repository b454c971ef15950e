"""Which of our errors each answer of a Temporal service is, and each reason why there was none."""

import re

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.network.redaction import printable, shorten

WORDS_LIMIT = 500
REFUSED_CREDENTIALS = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)
REFUSED_REQUEST = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.OUT_OF_RANGE,
    RPCStatusCode.ALREADY_EXISTS,
)
BUSY = RPCStatusCode.RESOURCE_EXHAUSTED
NEVER_SENT = ("ConnectError", "tcp connect error", "dns error")
"""In the SDK's words: there was no connection to send anything over."""
TOO_LARGE = "larger than max"
UNREADABLE = "failed to decode Protobuf message"

NO_CONNECTION = (
    (r"Connection refused", "connection refused"),
    (r"dns error", "the name could not be resolved"),
    (r"InvalidContentType|CorruptMessage", "it does not speak TLS there"),
    (r"UnknownIssuer", "its certificate is of an authority that is not trusted here; give the CA file"),
    (r"NotValidForName", "its certificate is for another name; give the server name"),
    (r"InvalidCertificate\(Expired", "its certificate has expired"),
    (r"InvalidCertificate", "its certificate cannot be used"),
    (r"timed out|TimedOut|deadline has elapsed", "no connection in time"),
    (r"h2 protocol|FRAME_SIZE|GoAway|InvalidMessage", "it does not speak gRPC there"),
)
"""What the SDK's long words for a failed connection say, best first."""
REFUSED_CERTIFICATE = re.compile(
    r"CertificateRequired|BadCertificate|CertificateUnknown|UnknownCA|HandshakeFailure|AccessDenied"
    r"|CertificateExpired|CertificateRevoked|DecryptError"
)
"""TLS alerts with which a service refuses a client's certificate, or the lack of one."""
REFUSED_AT_FIRST = re.compile(
    r"code: (?:Unauthenticated|PermissionDenied)|status: '?(?:Unauthenticated|Permis)"
)
SAID = re.compile(r'message: "((?:[^"\\]|\\.)*)"')


def refusal(error: RPCError, *, repeatable: bool) -> ConnectorError:
    """The error for an answer that is no success; the words are the service's."""
    words = _words(error.message)
    if error.status in REFUSED_CREDENTIALS:
        return Rejected(f"Temporal refused our credentials: {words}", needs_operator=True)
    if error.status == RPCStatusCode.NOT_FOUND:
        kind = Misconfigured if _is_of_namespace(error) else NotFound
        return kind(f"Temporal: {words}")
    if error.status in REFUSED_REQUEST or (error.status == BUSY and TOO_LARGE in error.message):
        return Rejected(f"Temporal refused it: {words}")
    if error.status == RPCStatusCode.UNIMPLEMENTED:
        return Unsupported(f"This Temporal service cannot do that: {words}")
    if error.status == BUSY:
        return Unreachable(f"Temporal is busy: {words}")
    if UNREADABLE in words and repeatable:
        return InvalidAnswer(f"Temporal's answer cannot be read: {words}")
    return unanswered(words, repeatable=repeatable, was_sent=not any(word in words for word in NEVER_SENT))


def unanswered(reason: str, *, repeatable: bool, was_sent: bool = True) -> ConnectorError:
    if repeatable or not was_sent:
        return Unreachable(f"Temporal did not answer: {reason}")
    return OutcomeUnknown(f"Temporal did not answer, but may have carried it out: {reason}")


CLOSED = re.compile(r"BrokenPipe|UnexpectedEof|ConnectionReset|ConnectionAborted|connection closed")
KEY_OF_ANOTHER = "KeyMismatch"


def no_connection(told: str, *, address: str, tls: bool) -> ConnectorError:
    """The error for what the SDK says of a connection that did not come about. Nothing was asked for yet."""
    if KEY_OF_ANOTHER in told:
        return Misconfigured("The client key file holds the key of another certificate.")
    if REFUSED_AT_FIRST.search(told):
        said = SAID.search(told)
        return Rejected(
            f"Temporal refused our credentials: {_words(said[1] if said else told)}", needs_operator=True
        )
    if found := REFUSED_CERTIFICATE.search(told):
        return Rejected(f"Temporal refused our client certificate, or wants one ({found[0]}).")
    reason = next((words for pattern, words in NO_CONNECTION if re.search(pattern, told)), "")
    if not reason and CLOSED.search(told):
        reason = f"it closed the connection; perhaps it wants {'a client certificate' if tls else 'TLS'}"
    reason = reason or _words(told)
    return Unreachable(f"Could not connect to Temporal at {address}: {reason}.")


def _is_of_namespace(error: RPCError) -> bool:
    return any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)


def _words(text: str) -> str:
    return shorten(" ".join(printable(text).split()), WORDS_LIMIT) or "it gave no reason"
