from datetime import datetime
from typing import Any, cast

import django_filters  # type: ignore[import-untyped]
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import admin_access
from catalogue.history import actor_of, changed_fields, write_fields
from catalogue.models import Toolset
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet
from identity.models import AccessToken, TokenState
from identity.tokens import (
    MAX_OVERLAP_HOURS,
    Expiry,
    check_new_owner,
    create_token,
    end_former_secret,
    revoke_tokens,
    rotate_token,
    usual_expiry,
)


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
        max_value=MAX_OVERLAP_HOURS,
        help_text="For how long the current secret works beside the new one.",
    )

    class Meta:
        model = AccessToken
        fields = ("overlap_hours", "expires_at")
        extra_kwargs = {"expires_at": {"help_text": f"{EXPIRY} One that never expires stays so."}}


@extend_schema_view(
    list=extend_schema(summary="List access tokens", description="Who has access, to what, since when."),
    retrieve=extend_schema(summary="Read an access token"),
)
@extend_schema(tags=["Tokens"])
class TokenViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[AccessToken]):
    queryset = AccessToken.objects.select_related("toolset", "created_by", "owner").order_by("name")
    serializer_class: Any = TokenSerializer
    filterset_class = TokenFilters
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
        The token itself is only in this response. Callers cannot grant more than they have: staff only
        scopes that their permissions cover, and a token only a lifetime within its own."""
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
    def rotate(self, request: Request, pk: str) -> Response:
        """Rotate an access token.
        The new secret is only in this response. The current one works `overlap_hours` more, an earlier one
        no longer."""
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
            by=actor_of(request),
        )
        return self._shown_once(token, text, status.HTTP_200_OK)

    @action(detail=True, methods=["post"], url_path="end-former-secret")
    def end_former_secret(self, request: Request, pk: str) -> Response:
        """End the former secret of an access token.
        Without a former secret, nothing changes."""
        token = self.get_object()
        end_former_secret(token, by=actor_of(request))
        return self.answer_with(token)

    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Revoke an access token.
        Within a second no process accepts the token any more, and its open streams end."""
        token = self.get_object()
        revoke_tokens([token], by=actor_of(request))
        return self.answer_with(token)

    def _maker(self) -> User | None:
        """The user whose permissions limit new tokens, also behind a token; None: a token of the operator."""
        auth: Any = self.request.auth
        if auth is None:
            return cast("User", self.request.user)
        return None if auth.caller.user_id is None else User.objects.get(pk=auth.caller.user_id)

    def _expiry(self, wanted: datetime | Expiry | None) -> datetime | Expiry | None:
        """Limited by the expiry of the calling token."""
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
