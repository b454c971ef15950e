"""The endpoint of engines' webhooks, `POST /hooks/<source>`. Unauthenticated senders learn nothing."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from audit.models import origin
from executions import engine_webhooks
from identity.authentication import TooManyFailures, note_wrong_delivery

MAX_BODY_BYTES = 64 * 1024  # As for all unauthenticated senders; reports of ends are much smaller
REFUSED = "There is no such webhook, or the signature of this delivery is not valid."


@csrf_exempt  # Does not depend on a session
@require_POST
def receive_delivery(request: HttpRequest, source: str) -> JsonResponse:
    length = request.META.get("CONTENT_LENGTH") or ""
    try:
        if (length.isdigit() and int(length) > MAX_BODY_BYTES) or len(request.body) > MAX_BODY_BYTES:
            return _refuse(source, f"The request body is larger than {MAX_BODY_BYTES:,} bytes.", status=413)
        headers = {name.lower(): value for name, value in request.headers.items()}
        engine_webhooks.take_delivery(source, headers, request.body)
    except engine_webhooks.NotProven as refused:
        return _refuse(source, str(refused))
    except engine_webhooks.Unreadable as refused:
        engine_webhooks.note_refusal(source, str(refused))
        return JsonResponse({"detail": str(refused)}, status=400)
    except engine_webhooks.TooMany as refused:
        return _try_later(str(refused), refused.seconds)
    return JsonResponse({}, status=202)


def _refuse(source: str, why: str, *, status: int = 401) -> JsonResponse:
    here = origin.get()
    try:
        note_wrong_delivery(source, why, address="" if here is None else here.address)
    except TooManyFailures as problem:
        return _try_later(str(problem), problem.seconds)
    engine_webhooks.note_refusal(source, why)
    return JsonResponse({"detail": why if status == 413 else REFUSED}, status=status)


def _try_later(words: str, seconds: int) -> JsonResponse:
    return JsonResponse({"detail": words}, status=429, headers={"Retry-After": str(seconds)})
