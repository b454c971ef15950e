"""REST's door to the kinds of engines: what can be connected, and which settings it takes."""

from typing import Any

from django.core.exceptions import ValidationError
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.kinds import engine_kind, engine_kinds
from catalogue.models import Source
from catalogue.permissions import Access
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.errors import Refusal
from catalogue.rest.serializers import CheckSerializer, JSONObjectField
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope
from catalogue.sources import check_candidate, check_settings
from connectors.registry import connector_kinds

KIND = OpenApiParameter("kind", str, OpenApiParameter.PATH, description="Such as `simplified`.")


class ConnectorSerializer(serializers.Serializer[Any]):
    """A kind of engine, and what its sources have to be told."""

    kind = serializers.CharField(help_text="What a source's `kind` says.")
    label = serializers.CharField(  # type: ignore[assignment]
        help_text="For people; empty where the connector cannot be used."
    )
    summary = serializers.CharField(help_text="What is connected by it, in a sentence.")
    problem = serializers.CharField(
        help_text="Why sources of this kind cannot be used at the moment; empty where they can."
    )
    secret_settings = serializers.ListField(
        child=serializers.CharField(),
        help_text="Which settings belong to a source's `credentials`; all others belong to its `config`.",
    )
    config_schema = JSONObjectField(
        allow_null=True,
        help_text="JSON Schema of all settings. Secrets are `writeOnly`. `address`: whoever changes it has "
        "to send the secrets again. `group`: where forms show it. `multiline`: a text of several lines. "
        "`only_if`: other settings, and the values of theirs with which this one matters.",
    )


class SettingsSerializer(StrictSerializer):
    """Settings that belong to no source yet."""

    config = JSONObjectField(default=dict, help_text="The engine's settings, without its secrets.")
    credentials = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        default=dict,
        write_only=True,
        help_text="The secret settings. Nothing is stored.",
    )


@extend_schema(tags=["Sources"])
class ConnectorViewSet(ApiViewSet[Source]):
    # No rows: kinds are what is installed.
    queryset = Source.objects.none()
    serializer_class = ConnectorSerializer
    filter_backends = ()
    lookup_field = "kind"
    lookup_value_regex = "[^/]+"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_source"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_source"),
        "check": Access(Scope.ADMIN, "catalogue.add_source"),
    }

    @extend_schema(
        summary="List kinds of engines",
        description="What a source can be made for on this server, with the settings that each kind takes.",
        responses=ConnectorSerializer(many=True),
    )
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(engine_kinds())
        return self.get_paginated_response(ConnectorSerializer(page, many=True).data)

    @extend_schema(
        summary="Read a kind of engine",
        description="Whether it can be used on this server, and which settings its sources take.",
        parameters=[KIND],
        responses=ConnectorSerializer,
    )
    def retrieve(self, request: Request, kind: str) -> Response:
        return Response(ConnectorSerializer(engine_kind(_known(kind))).data)

    @extend_schema(
        operation_id="connectors_check",
        summary="Check settings before they are saved",
        description="Tries to talk to the engine now. The answer is 200 also when it does not work.",
        parameters=[KIND],
        request=SettingsSerializer,
        responses=CheckSerializer,
    )
    @action(detail=True, methods=["post"])
    def check(self, request: Request, kind: str) -> Response:
        asked = SettingsSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        return Response(
            CheckSerializer(check_candidate(_candidate(_known(kind), **asked.validated_data))).data
        )


def _known(kind: str) -> str:
    if kind not in connector_kinds():
        raise NotFound(f"There is no such kind of engine; there are {', '.join(connector_kinds())}.")
    return kind


def _candidate(kind: str, *, config: dict[str, Any], credentials: dict[str, str]) -> Source:
    candidate = Source(name=kind, kind=kind, config=config)
    candidate.credentials = credentials
    try:
        check_settings(candidate)
    except ValidationError as error:
        raise Refusal.of_settings(error) from None
    return candidate
