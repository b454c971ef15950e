from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access, admin_access
from catalogue import sources
from catalogue.configuration import SOURCE
from catalogue.connections import engine_kind
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.history import actor_of, changed_fields
from catalogue.models import DiscoveryRun, Source
from catalogue.rest.base import (
    MAX_LIMIT,
    RESERVED_FOR,
    JSONObjectField,
    LongPages,
    Refusal,
    ReservedForField,
    StableOrdering,
    StrictBooleanFilter,
    StrictSerializer,
    StringListField,
    as_problem,
    rename,
    set_defaults,
)
from catalogue.rest.views import NAME, ApiViewSet, DestroyMixin
from catalogue.review import ReviewRefused, confirm_listing
from connectors.registry import connector_kinds


class DiscoveryRunSerializer(serializers.ModelSerializer[DiscoveryRun]):
    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    duration_ms = serializers.IntegerField(allow_null=True)
    found = serializers.IntegerField(help_text="Usable workflows in the listing.")

    class Meta:
        model = DiscoveryRun
        fields: tuple[str, ...] = (
            "id", "source", "trigger", "outcome", "started_at", "finished_at", "duration_ms", "found",
            "added", "updated", "unchanged", "returned", "missing", "held", "skipped_count", "error",
            "confirmed_at",
        )  # fmt: skip
        read_only_fields = fields


class FlaggedSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The engine's id, as far as it could be read.")
    name = serializers.CharField()
    reason = serializers.CharField()


class SkippedSerializer(FlaggedSerializer):
    position = serializers.IntegerField(help_text="Where in the listing, from 0.")


class NamedWorkflowSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The engine's id.")
    name = serializers.CharField()
    tool_name = serializers.CharField(help_text="What agents called it at that time.")


class NamedChangesSerializer(serializers.Serializer[Any]):
    """The workflows behind the counts, at most 1,000 of each; empty lists are left out."""

    added = NamedWorkflowSerializer(many=True, required=False)
    updated = NamedWorkflowSerializer(many=True, required=False)
    returned = NamedWorkflowSerializer(many=True, required=False)
    missing = NamedWorkflowSerializer(many=True, required=False)
    held = NamedWorkflowSerializer(many=True, required=False, help_text="Also those that returned changed.")


class DiscoveryRunDetailSerializer(DiscoveryRunSerializer):
    skipped = SkippedSerializer(many=True, help_text="Objects that were left out; at most 1,000.")
    flagged = FlaggedSerializer(
        many=True,
        help_text="Workflows to look at: something of them, such as an invalid schema, was replaced or left "
        "out, or they can be mistaken for another tool.",
    )
    changes = NamedChangesSerializer()

    class Meta(DiscoveryRunSerializer.Meta):
        fields = (*DiscoveryRunSerializer.Meta.fields, "changes", "skipped", "flagged")
        read_only_fields = fields


class DiscoveryRunFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    outcome = django_filters.ChoiceFilter(choices=DiscoveryRun.Outcome.choices)
    trigger = django_filters.ChoiceFilter(choices=DiscoveryRun.Trigger.choices)
    ordering = StableOrdering(fields=["started_at"])


@extend_schema_view(
    retrieve=extend_schema(description="With every object that was skipped or flagged, and why.")
)
@extend_schema(tags=["Discovery runs"])
class DiscoveryRunViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[DiscoveryRun]):
    queryset = DiscoveryRun.objects.none()
    serializer_class, list_serializer_class = DiscoveryRunDetailSerializer, DiscoveryRunSerializer
    filterset_class = DiscoveryRunFilters
    pagination_class = LongPages
    newest_by = "started_at"
    access = {
        **admin_access("catalogue.view_discoveryrun", "list", "retrieve"),
        **admin_access("catalogue.change_source", "confirm"),
    }

    def get_queryset(self) -> QuerySet[DiscoveryRun]:
        runs = DiscoveryRun.objects.select_related("source").order_by("-started_at", "-pk")
        return runs.for_lists() if self.action == "list" else runs

    @extend_schema(
        request=None,
        responses={
            200: DiscoveryRunDetailSerializer,
            202: OpenApiResponse(
                DiscoveryRunDetailSerializer,
                "Confirmed; the source is being listed already, or disabled: the next listing counts.",
            ),
            409: as_problem("It is not held, or a later listing was good."),
        },
    )
    @action(detail=True, methods=["post"])
    def confirm(self, request: Request, pk: str) -> Response:
        """Confirm a held listing.
        Says that the workflows which it has lost are gone, and lists the source again. That listing is the
        answer; it is held again if it has lost others."""
        held = self.get_object()
        try:
            run = confirm_listing(held, by=actor_of(request))
        except ReviewRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, str(refused), kind="discovery") from None
        code = status.HTTP_202_ACCEPTED if run is None else status.HTTP_200_OK
        return Response(DiscoveryRunDetailSerializer(run or self.get_object()).data, code)


# Sources
class HealthSerializer(serializers.ModelSerializer[Source]):
    class Meta:
        model = Source
        fields = ("state", "message", "failing_since", "failures")
        read_only_fields = fields
        extra_kwargs = rename({"state": "health_state", "message": "health_message"})


class WebhookSerializer(serializers.ModelSerializer[Source]):
    url = serializers.SerializerMethodField(
        help_text="Where the engine's webhook is to deliver to, if the source has a secret for one."
    )

    class Meta:
        model = Source
        fields = ("url", "received_at", "refused_at", "refusal")
        read_only_fields = fields
        extra_kwargs = rename({name: f"webhook_{name}" for name in fields[1:]})

    def get_url(self, source: Source) -> str:
        return sources.webhook_address(source)


class SourceSerializer(serializers.ModelSerializer[Source]):
    config = JSONObjectField(help_text="The engine's settings, without its secrets.")
    credentials_stored = serializers.SerializerMethodField(
        help_text="Whether secrets are; none is ever shown."
    )
    workflows_present = serializers.IntegerField(
        source="present_count", help_text="Workflows in the engine's last good list."
    )
    workflows_enabled = serializers.IntegerField(source="enabled_count", help_text="The enabled of those.")
    health = HealthSerializer(source="*")
    webhook = WebhookSerializer(source="*")
    reserved_for = StringListField(help_text=RESERVED_FOR)

    class Meta:
        model = Source
        fields = (
            "name", "kind", "enabled", "config", "credentials_stored", "new_workflows", "change_policy",
            "vanishing_share_percent", "refresh_interval", "max_concurrent", "reserved_for",
            "workflows_present", "workflows_enabled", "health", "webhook", "last_refreshed_at",
            "next_refresh_at", "created_at", "updated_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_credentials_stored(self, source: Source) -> bool:
        return bool(source.encrypted_credentials)


class SourceChangeSerializer(StrictSerializer, serializers.ModelSerializer[Source]):
    """The fields of a source that can be changed; its kind cannot."""

    name = serializers.CharField(max_length=64, help_text="Letters, digits, underscores, dots and hyphens.")
    config = JSONObjectField(help_text="The engine's settings, all of them: omitted ones get their defaults.")
    credentials = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        write_only=True,
        help_text="The secret settings, all of them. They are stored encrypted and never shown again.",
    )
    reserved_for = ReservedForField()

    class Meta:
        model = Source
        fields: tuple[str, ...] = ("name", "config", "credentials", *SOURCE.fields)
        extra_kwargs = {"max_concurrent": {"max_value": MAX_LIMIT}}


class NewSourceSerializer(SourceChangeSerializer):
    """A connection to an engine."""

    kind = serializers.CharField(max_length=50, help_text="Which connector speaks to the engine.")

    class Meta(SourceChangeSerializer.Meta):
        fields = (*SourceChangeSerializer.Meta.fields, "kind")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        set_defaults(fields, SOURCE.defaults | {"config": {}, "credentials": {}})
        return fields


class CheckSerializer(serializers.Serializer[Any]):
    """Whether the engine answered just now."""

    ok = serializers.BooleanField()
    message = serializers.CharField(help_text="What answered, or the engine's error message.")
    latency_seconds = serializers.FloatField(allow_null=True)


class SourceFilters(django_filters.FilterSet):  # type: ignore[misc]
    enabled = StrictBooleanFilter()
    kind = django_filters.CharFilter()
    health = django_filters.ChoiceFilter(field_name="health_state", choices=Source.HealthState.choices)
    ordering = StableOrdering(fields=["name", "created_at", "last_refreshed_at"])


NEW_SOURCE = {
    "name": "orders",
    "kind": "simplified",
    "config": {"base_url": "https://engine.example.com"},
    "credentials": {"api_key": "the-engines-key"},
    "new_workflows": "hidden",
}


@extend_schema_view(
    destroy=extend_schema(
        description="Also deletes its workflows, permanently; records of executions stay. Calls that have "
        "not started fail. Runs in progress may continue at the engine, which can no longer be queried: "
        "their executions become `unconfirmed`, for an administrator to resolve. To take the source out of "
        "service temporarily, set `enabled` to false instead."
    )
)
@extend_schema(tags=["Sources"])
class SourceViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, DestroyMixin[Source]):
    """With the health that their last listings showed."""

    queryset = Source.objects.with_workflow_counts().order_by("name")
    serializer_class = SourceSerializer
    filterset_class = SourceFilters
    lookup_field = "name"
    lookup_value_regex = NAME
    access = {
        **admin_access("catalogue.view_source", "list", "retrieve"),
        **admin_access("catalogue.add_source", "create"),
        **admin_access("catalogue.change_source", "partial_update", "check"),
        **admin_access("catalogue.delete_source", "destroy"),
        "refresh": Access(
            Scope.ADMIN, "catalogue.change_source", other_permission="catalogue.refresh_source"
        ),
    }

    @extend_schema(
        request=NewSourceSerializer,
        examples=[OpenApiExample("An engine of kind simplified", NEW_SOURCE, request_only=True)],
    )
    @transaction.atomic
    def create(self, request: Request) -> Response:
        """Add a source.
        Its first listing is due at once."""
        body = self.read_body(NewSourceSerializer)
        try:
            source = sources.create_source(**body)
        except ValidationError as error:
            raise Refusal.of_settings(error) from None
        self.record("Added.", source)
        return self.answer_with(source, status.HTTP_201_CREATED)

    @extend_schema(
        request=SourceChangeSerializer(partial=True),
        examples=[OpenApiExample("Switch it off", {"enabled": False}, request_only=True)],
    )
    @transaction.atomic
    def partial_update(self, request: Request, name: str) -> Response:
        """Change a source.
        `config` and `credentials` are each replaced as a whole. Omitted fields are unchanged."""
        source = self.get_object()
        body = self.read_body(SourceChangeSerializer, partial=True)
        decisions = {name: value for name, value in body.items() if name in sources.UPDATABLE}
        connection = {name: value for name, value in body.items() if name not in sources.UPDATABLE}
        try:
            if decisions:
                sources.update_source(source, **decisions)
            if connection:
                sources.configure_source(source, **connection)
        except ValidationError as error:
            raise Refusal.of_settings(error) from None
        self.record(changed_fields(body), source)
        return self.answer_with(source)

    @extend_schema(request=None, responses=CheckSerializer)
    @action(detail=True, methods=["post"])
    def check(self, request: Request, name: str) -> Response:
        """Check a source's connection.
        Tries to talk to the engine now. The answer is 200 also when it does not work."""
        return Response(CheckSerializer(sources.check_source(self.get_object())).data)

    @extend_schema(
        request=None,
        responses={
            200: DiscoveryRunDetailSerializer,
            409: as_problem("The source is disabled, or is already being refreshed."),
        },
    )
    @action(detail=True, methods=["post"])
    def refresh(self, request: Request, name: str) -> Response:
        """Refresh a source.
        Lists the engine's workflows now and waits for the result. The answer is 200 also for a listing
        that failed or is held: its `outcome` and `error` say so."""
        source = self.get_object()
        self.record("Requested a listing.", source)
        try:
            run = refresh_source(source)
        except RefreshRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, str(refused), kind="discovery") from None
        return Response(DiscoveryRunDetailSerializer(run).data)


KIND = OpenApiParameter("kind", str, OpenApiParameter.PATH, description="Such as `simplified`.")


class ConnectorSerializer(serializers.Serializer[Any]):
    """A kind of engine, and the settings that its sources need."""

    kind = serializers.CharField(help_text="What a source's `kind` says.")
    label = serializers.CharField(help_text="For people; empty where it is unusable.")  # type: ignore[assignment]
    summary = serializers.CharField(help_text="What is connected by it, in a sentence.")
    problem = serializers.CharField(help_text="Why it cannot be used at the moment; empty where it can.")
    secret_settings = StringListField(
        help_text="Those in a source's `credentials`; others are in its `config`."
    )
    config_schema = JSONObjectField(
        allow_null=True,
        help_text="JSON Schema of all settings. Secrets are `writeOnly`. `address`: a change "
        "needs the secrets again. `group`: where forms show it. `multiline`: a text of several lines. "
        "`only_if`: other settings, and the values of theirs with which this one matters. "
        "`file`: the path of a file; a changed file takes effect with the next call.",
    )


class SettingsSerializer(StrictSerializer):
    """Settings that do not belong to a source yet."""

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
    lookup_field = "kind"
    lookup_value_regex = "[^/]+"
    access = {
        **admin_access("catalogue.view_source", "list", "retrieve"),
        **admin_access("catalogue.add_source", "check"),
    }

    def list(self, request: Request) -> Response:
        """List kinds of engines.
        What a source can be made for on this server, with the settings that each kind takes."""
        self.filter_queryset(self.queryset)
        page = self.paginate_queryset(list(map(engine_kind, connector_kinds())))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @extend_schema(parameters=[KIND])
    def retrieve(self, request: Request, kind: str) -> Response:
        """Read a kind of engine.
        Whether it can be used on this server, and which settings its sources take."""
        return Response(self.get_serializer(engine_kind(_known(kind))).data)

    @extend_schema(parameters=[KIND], request=SettingsSerializer, responses=CheckSerializer)
    @action(detail=True, methods=["post"])
    def check(self, request: Request, kind: str) -> Response:
        """Check settings before they are saved.
        Tries to talk to the engine now. The answer is 200 also when it does not work."""
        body = self.read_body(SettingsSerializer)
        candidate = Source(name=kind, kind=_known(kind), config=body["config"])
        candidate.credentials = body["credentials"]
        try:
            sources.check_settings(candidate)
        except ValidationError as error:
            raise Refusal.of_settings(error) from None
        return Response(CheckSerializer(sources.check_candidate(candidate)).data)


def _known(kind: str) -> str:
    if kind not in connector_kinds():
        raise NotFound(f"Unknown kind of engine. The kinds are {', '.join(connector_kinds())}.")
    return kind
