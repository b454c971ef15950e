"""The base of every viewset of the API, and conditional answers to GET. Each answer has an ETag of its bytes
and its caller, and callers that have it already get 304. The catalogue's revision would not do: health,
counts and executions stand in the same answers."""

import hashlib
from typing import Any, TypeVar

from django.db.models import Model
from django.http import HttpResponse, HttpResponseBase
from django.utils.cache import get_conditional_response, patch_vary_headers
from rest_framework import status
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from catalogue.history import actor_of, record_change, record_deletion, remember_relations
from catalogue.rest.base import FIELDS, Refusal, keep_fields

NAME = "[A-Za-z0-9_.-]+"
VARIES_WITH = ("Accept", "Authorization", "Cookie")


def _tag(request: Request, response: HttpResponse) -> HttpResponseBase:
    patch_vary_headers(response, VARIES_WITH)
    token: Any = request.auth
    who = request.user.pk if token is None else token.caller.key
    content = f"{who} {response.get('Content-Type')} ".encode() + response.content
    response["ETag"] = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    answer = get_conditional_response(request, etag=response["ETag"], response=response)
    return response if answer is None else answer


Row = TypeVar("Row", bound=Model)


class ApiViewSet(GenericViewSet[Row]):
    """Refuses chunked bodies, which REST framework would take for empty ones."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            raise Refusal(
                status.HTTP_411_LENGTH_REQUIRED,
                "Send the body with a Content-Length, not in chunks.",
                kind="validation",
            )
        if FIELDS in request.query_params:
            # Not a method of this class: drf-spectacular makes no serializers of views that have one.
            whole = self.get_serializer
            self.get_serializer = lambda *args, **kwargs: keep_fields(  # type: ignore[method-assign]
                whole(*args, **kwargs), request
            )

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        finalized: Any = super().finalize_response(request, response, *args, **kwargs)
        is_read = request.method in ("GET", "HEAD")
        if is_read and isinstance(finalized, Response) and finalized.status_code == 200:
            finalized.add_post_render_callback(lambda rendered: _tag(request, rendered))
        return finalized

    def get_object(self) -> Row:
        obj = super().get_object()
        if self.request.method not in SAFE_METHODS:
            remember_relations(obj)
        return obj

    def read_body(self, serializer: type[BaseSerializer[Any]], **options: Any) -> Any:
        """The validated data. Raises REST framework's ValidationError."""
        body = serializer(data=self.request.data, **options)
        body.is_valid(raise_exception=True)
        return body.validated_data

    def record_deletion(self, obj: Model) -> None:
        record_deletion(actor_of(self.request), [obj])

    def record(self, message: str, *objects: Model) -> None:
        record_change(actor_of(self.request), objects, message)
