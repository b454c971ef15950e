"""What every set of views of the API does first."""

from typing import Any, TypeVar

from django.db.models import Model
from rest_framework import status
from rest_framework.request import Request
from rest_framework.viewsets import GenericViewSet

from catalogue.rest.errors import Refusal

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
