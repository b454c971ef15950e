"""The base of every viewset of the API, its root, its documentation, and the answer at unknown addresses.

Each answer to GET has an ETag of its bytes, and callers that have it already get 304. The catalogue's
revision would not do: health, counts and executions stand in the same answers.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from django.conf import settings
from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import transaction
from django.db.models import Model
from django.http import HttpResponse
from django.urls import resolve, reverse_lazy
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import conditional_page
from django.views.generic import TemplateView
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from drf_spectacular.views import SpectacularAPIView
from rest_framework import mixins, serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from access.permissions import AnyoneKnown
from catalogue.history import actor_of, record_change, record_deletion, remember_relations
from catalogue.models import Revision
from catalogue.rest.base import FIELDS, Refusal, keep_fields, refuse_together_with
from catalogue.tables import CSV, send_table
from connectors.network.headers import media_types_in

NAME = "[A-Za-z0-9_.-]+"
UNCHECKED = frozenset({"If-Match", "If-Unmodified-Since"})  # Who sends one relies on it


Row = TypeVar("Row", bound=Model)


class ApiViewSet(GenericViewSet[Row]):
    """Refuses chunked bodies, which REST framework would take for empty ones, compressed ones, and conditions
    of changes."""

    lookup_value_regex = "[0-9]{1,18}"
    list_serializer_class: type[BaseSerializer[Any]] | None = None  # Where lists show less

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        return conditional_page(super().as_view(*args, **kwargs))

    def get_serializer_class(self) -> type[BaseSerializer[Any]]:
        of_lists = self.list_serializer_class if self.action == "list" else None
        return of_lists or super().get_serializer_class()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            raise Refusal(
                status.HTTP_411_LENGTH_REQUIRED,
                "Send the body with a Content-Length, not in chunks.",
                kind="validation",
            )
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal(
                status.HTTP_415_UNSUPPORTED_MEDIA_TYPE,
                "Send the body without Content-Encoding; compressed ones are refused.",
                kind="validation",
            )
        if request.method not in SAFE_METHODS and (condition := UNCHECKED & request.headers.keys()):
            names = " and ".join(sorted(condition))
            raise Refusal.invalid(
                f"Nothing was changed: changes are not made on a condition here. Send it without {names}."
            )
        if FIELDS in request.query_params:
            # Not a method of this class: drf-spectacular makes no serializers of views that have one.
            whole = self.get_serializer
            self.get_serializer = lambda *args, **kwargs: keep_fields(  # type: ignore[method-assign]
                whole(*args, **kwargs), request
            )

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        patch_vary_headers(response, ("Accept", "Authorization", "Cookie"))
        return super().finalize_response(request, response, *args, **kwargs)

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

    def answer_with(self, row: Row, code: int = status.HTTP_200_OK) -> Response:
        """The row as it is stored now."""
        return Response(self.get_serializer(self.get_queryset().get(pk=row.pk)).data, code)

    def record_deletion(self, obj: Model) -> None:
        record_deletion(actor_of(self.request), [obj])

    def record(self, message: str, *objects: Model) -> None:
        record_change(actor_of(self.request), objects, message)


class DestroyMixin(mixins.DestroyModelMixin, ApiViewSet[Row]):
    @transaction.atomic
    def perform_destroy(self, instance: Row) -> None:
        Revision.lock()
        self.record_deletion(instance)
        instance.delete()


class ApiRoot(APIView):
    permission_classes = (AnyoneKnown,)
    routes: Mapping[str, str] = {}  # Of `config.urls`, by the names of the collections

    def get_serializer(self, **_: Any) -> Any:
        return inline_serializer("Root", {name: serializers.URLField() for name in self.routes})

    @extend_schema(operation_id="root_retrieve", tags=["Root"])
    def get(self, request: Request) -> Response:
        # Where a slash is optional, `reverse` leaves it out.
        """Find the collections.
        The address of each collection, and of this description."""
        return Response({name: reverse(route, request=request) + "/" for name, route in self.routes.items()})


class ApiDocs(LoginRequiredMixin, TemplateView):
    """Swagger UI and ReDoc, served locally, for signed-in users: the description needs a login, too."""

    template_name = "catalogue/rest/docs.html"
    login_url = reverse_lazy("admin:login")
    viewer = "swagger"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        title = {"swagger": "Swagger UI", "redoc": "ReDoc"}[self.viewer]
        shown = {"viewer": self.viewer, "title": title, "favicon": settings.STATIC_URL + settings.FAVICON}
        return {**super().get_context_data(**kwargs), **shown}


ADDRESS_OF_ONE = re.compile(r"(?P<collection>/api/[^/]+/)(?P<key>[^/]+)(?P<action>.*)", re.DOTALL)
FORMS_OF_IDS = {  # The widest first, each with an example
    "names of letters, digits and the signs _ . -": "x",
    "whole numbers": "1",
    "UUIDs, with hyphens": "00000000-0000-0000-0000-000000000000",
}


class SchemaView(SpectacularAPIView):
    """The document is the same for everyone. It takes half a second of CPU, so it is kept."""

    _made: ClassVar[dict[str, Any]] = {}

    def perform_content_negotiation(self, request: Request, force: bool = False) -> tuple[Any, str]:
        """`?format=json`, which links can name, decides before the header `Accept`."""
        asked = request.query_params.get("format")
        if asked is None or force:
            negotiated: tuple[Any, str] = super().perform_content_negotiation(request, force)
            return negotiated
        named = [one for one in self.get_renderers() if one.format == asked]
        if not named:
            raise Refusal.invalid("The document is written with ?format=yaml or ?format=json.")
        # The last of each is the plain media type.
        return named[-1], named[-1].media_type

    def _get_schema_response(self, request: Request) -> HttpResponse:
        renderer: Any = request.accepted_renderer
        if renderer.media_type not in self._made:
            generator: Any = self.generator_class()
            document = generator.get_schema(request=None, public=True)
            self._made[renderer.media_type] = renderer.render(document, renderer_context={})
        response = HttpResponse(self._made[renderer.media_type], content_type=renderer.media_type)
        name = f"{settings.SPECTACULAR_SETTINGS['TITLE']}.{renderer.format}"
        response["Content-Disposition"] = f'inline; filename="{name}"'
        return response


@extend_schema(exclude=True)
class NoSuchEndpoint(APIView):
    """A JSON error instead of an HTML page."""

    permission_classes = (AnyoneKnown,)

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if (meant := ADDRESS_OF_ONE.fullmatch(request.path_info)) and (form := _form_of_ids(*meant.groups())):
            raise NotFound(
                f"There is no {meant['key'][:100]} in {meant['collection'][:100]}, where ids are {form}. Its "
                "list shows what exists and may be seen."
            )
        described = reverse("api-schema")
        raise NotFound(
            f"There is no such endpoint: {request.path[:200]}. GET {described} describes the endpoints."
        )


def _form_of_ids(collection: str, _: str, action: str) -> str:
    """The form of ids for which the collection has the action; empty if there is none."""
    for form, example in FORMS_OF_IDS.items():
        view = getattr(resolve(f"{collection}{example}{action}").func, "cls", NoSuchEndpoint)
        if view is not NoSuchEndpoint:
            return form
    return ""


# Lists that also come as CSV


FORMAT = OpenApiParameter(
    "format",
    enum=["json", "csv"],
    description="`csv`: all rows that match the other parameters, as one table. "
    "Default: `json`, unless `Accept` names only `text/csv`.",
)
OF_PAGES = ("page", "page_size")


class TableMixin(mixins.ListModelMixin, ApiViewSet[Row]):
    newest_by = ""  # Of a list that grows with use: its time, by which tables are always sorted
    extra_parameters = (FORMAT.name,)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """A table has no renderer that REST framework would find for `Accept`; see `_wants_csv`."""
        is_table = self.action == "list" and CSV in media_types_in(request.headers.get("Accept", ""))
        return super().perform_content_negotiation(request, force=force or is_table)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if not self._wants_csv(request):
            return super().list(request, *args, **kwargs)
        shown: Any = self.get_serializer(many=True)
        return send_table(
            self.filter_queryset(self.get_queryset()),
            shown.child,
            by=actor_of(request),
            filters=request.query_params.keys(),
            newest_by=self.newest_by,
        )

    def _wants_csv(self, request: Request) -> bool:
        """Raises Refusal for an unknown format, and for parameters of pages."""
        accepted = media_types_in(request.headers.get("Accept", ""))
        default = "csv" if CSV in accepted and "application/json" not in accepted else "json"
        wanted = request.query_params.get(FORMAT.name, default)
        if wanted not in ("json", "csv"):
            raise Refusal.of_parameter(FORMAT.name, "The format must be json or csv.")
        if wanted == "csv":
            # All rows, and those of a list that grows the newest first.
            beside = (*OF_PAGES, "cursor", "ordering") if self.newest_by else OF_PAGES
            refuse_together_with(request, "format=csv", beside)
        return wanted == "csv"
