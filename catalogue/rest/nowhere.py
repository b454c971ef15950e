"""Addresses below /api/ where nothing is."""

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.views import APIView

from catalogue.permissions import AnyoneKnown


@extend_schema(exclude=True)
class NoSuchEndpoint(APIView):
    """Answers as the rest of the API does, instead of with a page."""

    permission_classes = (AnyoneKnown,)

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        described = reverse("api-schema")
        raise NotFound(
            f"There is no such endpoint: {request.path[:200]}. GET {described} describes those there are."
        )
