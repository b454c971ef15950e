"""What every set of views of the API does first."""

from typing import Any, TypeVar

from django.db.models import Model
from rest_framework import status
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from catalogue.history import actor_of, record_change, record_deletion, remember_relations
from catalogue.rest.conditional import make_conditional
from catalogue.rest.errors import Refusal
from catalogue.rest.lists import FIELDS, keep_fields

Row = TypeVar("Row", bound=Model)


class ApiViewSet(GenericViewSet[Row]):
    """Refuses a body of unknown length, which REST framework would take for none."""

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
        finalized = super().finalize_response(request, response, *args, **kwargs)
        if isinstance(finalized, Response):
            make_conditional(request, finalized)
        return finalized

    def get_object(self) -> Row:
        """With what the history compares after a change."""
        obj = super().get_object()
        if self.request.method not in SAFE_METHODS:
            remember_relations(obj)
        return obj

    def record_deletion(self, obj: Model) -> None:
        record_deletion(actor_of(self.request), [obj])

    def record(self, message: str, *objects: Model) -> None:
        """Keep in their history what the request does to these objects."""
        record_change(actor_of(self.request), objects, message)
