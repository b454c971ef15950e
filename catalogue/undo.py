"""Offers in the admin to undo what a request has just changed."""

from collections.abc import Callable

from django.contrib import messages
from django.contrib.messages.storage.base import Message
from django.http import HttpRequest, HttpResponseBase

from catalogue.actions.reverting import permission_to_revert, why_not_revertible
from catalogue.compat import last_message
from catalogue.history import one_batch
from catalogue.models import HistoryEntry

UNDO = "undo-"  # And the key of the batch: the tag of a message with a button


class OfferUndo:
    """Makes what one request of the admin changes a batch, and gives the message a button to undo it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST" or not request.path_info.startswith("/admin/"):
            return self._get_response(request)
        with one_batch() as batch:
            response = self._get_response(request)
        # A page that changes in place shows messages only if it asks for them with `X-Shows-Messages`.
        is_shown = "HX-Request" not in request.headers or "X-Shows-Messages" in request.headers
        if batch.size and response.status_code < 400 and is_shown:
            first = HistoryEntry.objects.filter(batch=batch.key).first()
            if first is not None and _may_undo(request, first):
                _tell(request).extra_tags = f"{UNDO}{batch.key}"
                response["HX-Trigger"] = "told"
        return response


def _may_undo(request: HttpRequest, entry: HistoryEntry) -> bool:
    return not why_not_revertible(entry) and request.user.has_perm(permission_to_revert(entry))


def _tell(request: HttpRequest) -> Message:
    """The message that the request's view has left, or a new one."""
    if last_message(request) is None:
        messages.success(request, "Changed.")
    found = last_message(request)
    assert found is not None, "it has just been added"
    return found
