from datetime import datetime
from typing import Any, cast

import django_filters  # type: ignore[import-untyped]
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Scope
from catalogue.configuration import TOOLSET
from catalogue.curation import CHANGEABLE, UnknownWorkflows, write_toolset
from catalogue.exposure import confirmed_catalogue, shown_by
from catalogue.history import changed_fields, write_fields
from catalogue.models import Toolset, Workflow
from catalogue.permissions import admin_access
from catalogue.rest import base
from catalogue.rest.base import RESERVED_FOR
from catalogue.rest.filters import RuleSerializer
from catalogue.rest.views import ApiViewSet
from mcp_bridge.models import AccessToken, TokenState
from mcp_bridge.portability import find_refused
from mcp_bridge.tokens import (
    MOST_OVERLAP_HOURS,
    Expiry,
    ToolsetInUse,
    check_new_owner,
    create_token,
    delete_toolset,
    end_former_secret,
    resource_url,
    rotate_token,
    usual_expiry,
)
from mcp_bridge.tool_lists import cost_of_toolset

MAX_DESCRIPTION = 20_000
MAX_BUDGET = 1_000_000_000
MAX_RULES = 200
MAX_PICKED = 10_000


class ListCostSerializer(serializers.Serializer[Any]):
    """What one `tools/list`, over all its pages, costs a client's context."""

    tools = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="Of the JSON array of tools as it is served.")
    tokens = serializers.IntegerField(help_text="Estimated: one for every four characters.")


class ToolsetCostSerializer(serializers.Serializer[Any]):
    """What the list of tools costs in either mode, for a token that may read and run."""

    full = ListCostSerializer()
    compact = ListCostSerializer()
    over_budget = serializers.BooleanField(source="is_over_budget")
    warning = serializers.CharField(help_text="How far it is over the budget; empty within.")


class ToolsetSerializer(base.RowSerializer[Toolset]):
    reserved_for = base.StringListField(help_text=RESERVED_FOR)
    url = serializers.SerializerMethodField(help_text="The address to which MCP clients connect.")
    workflow_count = serializers.SerializerMethodField(help_text="How many it shows if it is enabled.")
    cost = serializers.SerializerMethodField()

    class Meta:
        model = Toolset
        fields: tuple[str, ...] = (
            "slug", "title", "description", "enabled", "mode", "portable", "token_budget",
            "inline_wait_seconds", "calls_per_minute", "calls_at_once", "approval_required",
            "approvers_needed", "reserved_for", "url", "workflow_count", "cost", "created_at", "updated_at",
        )  # fmt: skip

    def get_url(self, toolset: Toolset) -> str:
        return resource_url(toolset.slug)

    def get_workflow_count(self, toolset: Toolset) -> int:
        return len(shown_by(toolset, self.context["catalogue"]))

    @extend_schema_field(ToolsetCostSerializer)
    def get_cost(self, toolset: Toolset) -> dict[str, Any]:
        return dict(ToolsetCostSerializer(cost_of_toolset(toolset, self.context["catalogue"])).data)


class ToolsetDetailSerializer(ToolsetSerializer):
    """A toolset in full."""

    picked = serializers.SerializerMethodField(help_text="Tool names of the workflows picked by hand.")
    rules = RuleSerializer(many=True, help_text="Rules in the order in which they are evaluated.")
    workflows = serializers.SerializerMethodField(help_text="Tool names of those that it shows if enabled.")
    refused = serializers.SerializerMethodField(
        help_text="By tool name, why some model providers refuse it; empty in portable mode."
    )

    class Meta(ToolsetSerializer.Meta):
        fields = (*ToolsetSerializer.Meta.fields, "picked", "rules", "workflows", "refused")

    def get_picked(self, toolset: Toolset) -> list[str]:
        return sorted(workflow.tool_name for workflow in toolset.picked.all())

    def get_workflows(self, toolset: Toolset) -> list[str]:
        return list(shown_by(toolset, self.context["catalogue"]))

    def get_refused(self, toolset: Toolset) -> dict[str, list[str]]:
        return find_refused(toolset, self.context["catalogue"])


class ToolsetChangeSerializer(base.StrictSerializer, serializers.ModelSerializer[Toolset]):
    """The fields of a toolset that can change; `picked` and `rules` are each replaced as a whole."""

    reserved_for = base.ReservedForField()
    picked = serializers.ListField(
        child=serializers.CharField(max_length=64),
        max_length=MAX_PICKED,
        help_text="Tool names of workflows that are always in it, as long as they are exposed.",
    )
    rules = serializers.ListField(
        child=RuleSerializer(),
        max_length=MAX_RULES,
        help_text="Which other exposed workflows it contains. The first rule that matches decides.",
    )

    class Meta:
        model = Toolset
        fields = (*CHANGEABLE, "picked", "rules")
        extra_kwargs = {
            "slug": {"validators": []},  # Those of the row, which also tell which slug is taken
            "description": {"max_length": MAX_DESCRIPTION},
            "token_budget": {"max_value": MAX_BUDGET},
        }

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            # `partial=True` would make the fields of the rules optional too.
            field.required = False
        return fields


class NewToolsetSerializer(ToolsetChangeSerializer):
    """A toolset; without `picked` and `rules` it is empty."""

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["slug"].required = True
        base.set_defaults(fields, TOOLSET.defaults | {"picked": [], "rules": []})
        return fields


NEW_TOOLSET = {
    "slug": "finance",
    "description": "What the accounting team's agents need.",
    "rules": [{"subject": "tag", "pattern": "finance"}],
    "picked": ["text_statistics"],
    "token_budget": 4000,
}


class ToolsetFilters(django_filters.FilterSet):  # type: ignore[misc]
    enabled = base.StrictBooleanFilter()
    mode = django_filters.ChoiceFilter(choices=Toolset.Mode.choices)
    ordering = base.StableOrdering(fields=["slug", "created_at", "updated_at"])


@extend_schema_view(
    retrieve=extend_schema(summary="Read a toolset", description="With its rules and what it shows.")
)
@extend_schema(tags=["Toolsets"])
class ToolsetViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Toolset]):
    """With what each takes of a client's context."""

    queryset = Toolset.objects.prefetch_related(
        "rules", Prefetch("picked", queryset=Workflow.objects.only("tool_name").order_by())
    ).order_by("slug")
    serializer_class, list_serializer_class = ToolsetDetailSerializer, ToolsetSerializer
    filterset_class = ToolsetFilters
    lookup_field = "slug"
    lookup_value_regex = "[A-Za-z0-9_.-]+"
    access = {
        **admin_access("catalogue.view_toolset", "list", "retrieve"),
        **admin_access("catalogue.add_toolset", "create"),
        **admin_access("catalogue.change_toolset", "partial_update"),
        **admin_access("catalogue.delete_toolset", "destroy"),
    }

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "catalogue": confirmed_catalogue()}

    @extend_schema(
        request=NewToolsetSerializer,
        examples=[OpenApiExample("By tag, and one picked by hand", NEW_TOOLSET, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Add a toolset.
        Clients can connect to its address within a second."""
        asked = self.read_body(NewToolsetSerializer)
        return self._written(Toolset(), asked, status.HTTP_201_CREATED, change="Added.")

    @extend_schema(request=ToolsetChangeSerializer)
    def partial_update(self, request: Request, slug: str) -> Response:
        """Change a toolset.
        `picked` and `rules` are each replaced as a whole. Omitted fields do not change."""
        toolset = self.get_object()
        asked = self.read_body(ToolsetChangeSerializer)
        return self._written(toolset, asked, status.HTTP_200_OK, change=changed_fields(asked))

    @extend_schema(responses={204: None, 409: base.as_problem("Tokens are bound to the toolset.")})
    @transaction.atomic
    def destroy(self, request: Request, slug: str) -> Response:
        """Delete a toolset.
        Its address stops working immediately. The workflows are not affected."""
        toolset = self.get_object()
        self.record_deletion(toolset)
        try:
            delete_toolset(toolset)
        except ToolsetInUse as error:
            raise base.Refusal(status.HTTP_409_CONFLICT, str(error), kind="configuration") from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @transaction.atomic
    def _written(self, toolset: Toolset, asked: dict[str, Any], code: int, *, change: str) -> Response:
        try:
            written = write_toolset(toolset, **asked)
        except UnknownWorkflows as unknown:
            problems = [
                base.Problem(f"/picked/{asked['picked'].index(name)}", f"No such workflow: {name}")
                for name in unknown.names
            ]
            raise base.Refusal.invalid(base.NOT_VALID, problems) from None
        self.record(change, written)
        return self.answer_with(written, code)


class TokenFilters(django_filters.FilterSet):  # type: ignore[misc]
    usable = base.ChosenFilter(AccessToken.objects.usable, label="Whether its `state` is `usable`.")
    expires_soon = base.ChosenFilter(AccessToken.objects.expiring, label="Usable, and expires within 7 days.")
    owner = django_filters.CharFilter(field_name="owner__username", label="The user name of its owner.")
    toolset = django_filters.CharFilter(field_name="toolset__slug", label="The slug of its toolset.")
    ordering = base.StableOrdering(fields=["name", "created_at", "expires_at", "last_used_at"])


class TokenUseSerializer(serializers.Serializer[Any]):
    """Where requests with a token came from."""

    address = serializers.CharField(help_text="Of the client, as reported by trusted proxies.")
    client = serializers.CharField(help_text="The client's User-Agent.")
    at = serializers.DateTimeField(help_text="When the client was last seen, to the minute.")


class FormerSecretSerializer(base.RowSerializer[AccessToken]):
    """The secret from before the last rotation, while it is valid."""

    class Meta:
        model = AccessToken
        fields = ("prefix", "ends_at", "last_used_at")
        extra_kwargs = {
            "prefix": {"source": "former_prefix"},
            "ends_at": {"source": "former_ends_at", "allow_null": False},
            "last_used_at": {"source": "former_used_at"},
        }

    def get_attribute(self, token: AccessToken) -> AccessToken | None:
        return token if token.has_former_secret else None


class TokenSerializer(base.RowSerializer[AccessToken]):
    """An access token, without its secret."""

    caller = serializers.CharField(
        source="caller_key", help_text="As executions and the history name it, such as `token:7`."
    )
    scopes = base.StringListField()
    toolset = serializers.CharField(source="toolset.slug", allow_null=True, default=None)
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    owner = serializers.CharField(
        source="owner.username",
        allow_null=True,
        default=None,
        help_text="The token stops working when this user is disabled. Null: of the installation.",
    )
    usable = serializers.SerializerMethodField(help_text="Its `state` is `usable`.")
    state = serializers.ChoiceField(choices=TokenState.choices)
    expires_soon = serializers.BooleanField(source="ends_soon", help_text="Within 7 days.")
    former_secret = FormerSecretSerializer(
        source="*", read_only=True, allow_null=True, help_text="If null, only the current secret works."
    )
    last_uses = TokenUseSerializer(many=True, help_text="Most recent first, at most ten.")

    class Meta:
        model = AccessToken
        fields: tuple[str, ...] = (
            "id", "name", "purpose", "caller", "owner", "prefix", "scopes", "toolset", "inline_wait_seconds",
            "calls_per_minute", "calls_at_once", "usable", "state", "expires_soon",
            "created_at", "created_by", "expires_at", "rotated_at", "former_secret", "revoked_at",
            "last_used_at", "last_uses",
        )  # fmt: skip

    def get_usable(self, token: AccessToken) -> bool:
        return token.state is TokenState.USABLE


class SecretTokenSerializer(TokenSerializer):
    """An access token with its secret, which is shown only once."""

    token = serializers.CharField(help_text="Send it as `Authorization: Bearer <token>`.")

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "token")


class TokenChangeSerializer(base.StrictSerializer, serializers.ModelSerializer[AccessToken]):
    """The fields of an access token that can change; omitted fields do not change."""

    owner = serializers.SlugRelatedField(
        slug_field="username",
        queryset=User.objects.all(),
        required=False,
        allow_null=True,
        help_text="A user name. Any user other than the caller requires `mcp_bridge.assign_accesstoken`.",
    )

    class Meta:
        model = AccessToken
        fields: tuple[str, ...] = (
            "purpose", "owner", "inline_wait_seconds", "calls_per_minute", "calls_at_once",
        )  # fmt: skip


EXPIRY = "Default: after the days in the settings. Null: never, which needs `mcp_bridge.keep_accesstoken`."


class NewTokenSerializer(TokenChangeSerializer):
    """A new access token."""

    scopes = serializers.ListField(
        required=False,
        child=serializers.ChoiceField(choices=Scope.choices),
        help_text="Default: `workflows:read` and `workflows:run`.",
    )
    toolset = serializers.SlugRelatedField(
        slug_field="slug",
        queryset=Toolset.objects.all(),
        required=False,
        allow_null=True,
        help_text="The slug of the only toolset that it sees and runs. Null: all exposed workflows.",
    )

    class Meta(TokenChangeSerializer.Meta):
        fields = (*TokenChangeSerializer.Meta.fields, "name", "scopes", "toolset", "expires_at")
        extra_kwargs = {"name": {"validators": []}, "expires_at": {"help_text": EXPIRY}}


class RotationSerializer(base.StrictSerializer, serializers.ModelSerializer[AccessToken]):
    """How to rotate."""

    overlap_hours = serializers.FloatField(
        default=0,
        min_value=0,
        max_value=MOST_OVERLAP_HOURS,
        help_text="For how long the current secret works beside the new one.",
    )

    class Meta:
        model = AccessToken
        fields = ("overlap_hours", "expires_at")
        extra_kwargs = {"expires_at": {"help_text": f"{EXPIRY} One that never expires stays so."}}


@extend_schema_view(retrieve=extend_schema(summary="Read an access token"))
@extend_schema(tags=["Tokens"])
class TokenViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[AccessToken]):
    """Who has access, to what, since when."""

    queryset = AccessToken.objects.select_related("toolset", "created_by", "owner").order_by("name")
    serializer_class: Any = TokenSerializer
    filterset_class = TokenFilters
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        **admin_access("mcp_bridge.view_accesstoken", "list", "retrieve"),
        **admin_access("mcp_bridge.add_accesstoken", "create"),
        **admin_access("mcp_bridge.change_accesstoken", "partial_update", "rotate"),
        **admin_access("mcp_bridge.change_accesstoken", "end_former_secret", "revoke"),
    }

    @extend_schema(request=NewTokenSerializer, responses={201: SecretTokenSerializer})
    @transaction.atomic
    def create(self, request: Request) -> Response:
        """Create an access token.
        The token itself is only in this response. Callers cannot grant more than they have: staff only scopes
        that their permissions cover, and a token only a lifetime within its own."""
        given = self.read_body(NewTokenSerializer)
        given["expires_at"] = self._expiry(given.get("expires_at", Expiry.USUAL))
        maker = self._maker()
        token, text = create_token(**{"owner": maker} | given, created_by=maker)
        self.record("Added.", token)
        return self._shown_once(token, text, status.HTTP_201_CREATED)

    @extend_schema(request=TokenChangeSerializer)
    @transaction.atomic
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change an access token.
        The name and the scopes cannot be changed. Create another token instead."""
        token = self.get_object()
        given = self.read_body(TokenChangeSerializer)
        if "owner" in given:
            check_new_owner(token, given["owner"], chosen_by=self._maker())
        write_fields(token, given)
        self.record(changed_fields(given), token)
        return self.answer_with(token)

    @extend_schema(
        request=RotationSerializer,
        responses={200: SecretTokenSerializer, 409: base.as_problem("The token is revoked.")},
    )
    @action(detail=True, methods=["post"])
    @transaction.atomic
    def rotate(self, request: Request, pk: str) -> Response:
        """Rotate an access token.
        The new secret is only in this response. The current one works `overlap_hours` more, an earlier one no
        longer."""
        token = self.get_object()
        given = self.read_body(RotationSerializer)
        if token.revoked_at is not None:
            raise base.Refusal(409, f"{token.name} is revoked. Create another token.", kind="configuration")
        # One that never expires stays so, whatever is asked for.
        expires_at = None if token.expires_at is None else given.get("expires_at", Expiry.USUAL)
        text = rotate_token(
            token,
            overlap_hours=given["overlap_hours"],
            expires_at=self._expiry(expires_at),
            rotated_by=self._maker(),
        )
        self.record("Rotated: it has a new secret.", token)
        return self._shown_once(token, text, status.HTTP_200_OK)

    @action(detail=True, methods=["post"], url_path="end-former-secret")
    @transaction.atomic
    def end_former_secret(self, request: Request, pk: str) -> Response:
        """End the former secret of an access token.
        Without a former secret, nothing changes."""
        token = self.get_object()
        if end_former_secret(token):
            self.record("Ended the former secret.", token)
        return self.answer_with(token)

    @action(detail=True, methods=["post"])
    @transaction.atomic
    def revoke(self, request: Request, pk: str) -> Response:
        """Revoke an access token.
        Within a second no process accepts the token any more, and its open streams end."""
        token = self.get_object()
        if token.revoked_at is None:
            token.revoke()
            self.record("Revoked.", token)
        return self.answer_with(token)

    def _maker(self) -> User | None:
        """The user whose permissions limit new tokens, also behind a token; None: a token of the operator."""
        auth: Any = self.request.auth
        if auth is None:
            return cast("User", self.request.user)
        return None if auth.caller.user_id is None else User.objects.get(pk=auth.caller.user_id)

    def _expiry(self, wanted: datetime | Expiry | None) -> datetime | Expiry | None:
        """Limited by the expiry of the calling token."""
        if isinstance(wanted, datetime) and wanted <= timezone.now():
            raise ValidationError({"expires_at": "The expiry must be in the future."})
        auth: Any = self.request.auth
        if auth is None:
            return wanted
        if auth.token_id is None:
            raise PermissionDenied(
                "The token of a login cannot create or rotate access tokens, which would outlive the login."
            )
        own = AccessToken.objects.values_list("expires_at", flat=True).get(pk=auth.token_id)
        if own is None:
            return wanted
        if wanted is Expiry.USUAL:
            return min(usual_expiry(), own)
        if wanted is None or wanted > own:
            limit = f"Must not be later than the expiry of the calling token, {own:%Y-%m-%d %H:%M} UTC."
            raise ValidationError({"expires_at": limit})
        return wanted

    def _shown_once(self, token: AccessToken, text: str, code: int) -> Response:
        row = self.get_queryset().get(pk=token.pk)
        return Response({**TokenSerializer(row).data, "token": text}, code)
