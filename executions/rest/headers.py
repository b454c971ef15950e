"""What requests to run something say in their headers."""

from rest_framework import status
from rest_framework.request import Request

from catalogue.rest.errors import Refusal
from executions.refusals import InvalidIdempotencyKey
from executions.starting import read_idempotency_key

IDEMPOTENCY_KEY = "Idempotency-Key"
IDEMPOTENT_REPLAYED = "Idempotent-Replayed"
CACHE_CONTROL = "Cache-Control"


def idempotency_key_of(request: Request) -> str:
    """Empty where none was sent. Raises Refusal for one that cannot be used."""
    sent = request.headers.get(IDEMPOTENCY_KEY)
    try:
        return "" if sent is None else read_idempotency_key(sent)
    except InvalidIdempotencyKey as error:
        raise Refusal(status.HTTP_400_BAD_REQUEST, str(error), kind="validation") from None


def wants_fresh(request: Request) -> bool:
    """Whether the workflow has to run though a cached result could answer."""
    directives = request.headers.get(CACHE_CONTROL, "").split(",")
    return "no-cache" in [directive.strip().lower() for directive in directives]
