from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue import product_settings
from catalogue.access import Scope
from catalogue.models import ProductSettings
from catalogue.permissions import Access
from catalogue.rest.base import NOT_VALID, Problem, Refusal, StrictSerializer
from catalogue.rest.views import ApiViewSet


@extend_schema_field({"oneOf": [{"type": "boolean"}, {"type": "number"}]})
class SettingValueField(serializers.Field[Any, Any, Any, Any]):
    def to_representation(self, value: Any) -> Any:
        return value


class SettingSerializer(serializers.Serializer[product_settings.LiveSetting]):
    """One setting, and where its value comes from."""

    name = serializers.CharField()
    value = SettingValueField(help_text="The present value.")
    origin = serializers.CharField(
        help_text="`changed here`: by an administrator; `environment` and `default`: unchanged."
    )
    default = SettingValueField(help_text="The value without a change.")
    variable = serializers.CharField(help_text="The environment variable of the default.")
    description = serializers.CharField()


class SettingsSerializer(serializers.Serializer[Any]):
    settings = SettingSerializer(many=True)


def _field(setting: product_settings.LiveSetting) -> serializers.Field[Any, Any, Any, Any]:
    common: dict[str, Any] = {"required": False, "allow_null": True, "help_text": setting.description}
    if setting.type is bool:
        return serializers.BooleanField(**common)
    bounds = {"min_value": setting.minimum, "max_value": setting.maximum}
    common |= {name: bound for name, bound in bounds.items() if bound is not None}
    return (serializers.IntegerField if setting.type is int else serializers.FloatField)(**common)


SettingsChangeSerializer = type(
    "SettingsChangeSerializer",
    (StrictSerializer,),
    {
        "__doc__": "The settings to change; null restores the environment's value.",
        "__module__": __name__,
        **{name: _field(setting) for name, setting in product_settings.live_settings().items()},
    },
)


@extend_schema(tags=["Settings"])
class SettingsViewSet(ApiViewSet[ProductSettings]):
    queryset = ProductSettings.objects.none()
    filter_backends = ()
    pagination_class = None
    access = {
        "retrieve": Access(Scope.ADMIN, "catalogue.view_productsettings"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_productsettings"),
    }

    @extend_schema(
        operation_id="settings_retrieve",
        summary="Read the settings that can be changed",
        description="Those that take effect within seconds, in all processes. For administrators.",
        responses=SettingsSerializer,
    )
    def retrieve(self, request: Request) -> Response:
        return Response(_settings())

    @extend_schema(
        operation_id="settings_update",
        summary="Change settings",
        description="Only those that are named; null takes a change back. All of them, or none.",
        request=SettingsChangeSerializer,
        responses=SettingsSerializer,
    )
    def partial_update(self, request: Request) -> Response:
        body = self.read_body(SettingsChangeSerializer)
        row = product_settings.settings_row()
        token: Any = request.auth
        by = f"user {request.user.get_username()}" if token is None else f"token {token.caller.name}"
        try:
            phrases = product_settings.change_settings(body, by=by)
        except product_settings.InvalidSettings as error:
            problems = [Problem(f"/{name}", problem) for name, problem in error.problems.items()]
            raise Refusal(
                status.HTTP_400_BAD_REQUEST, NOT_VALID, kind="validation", errors=problems
            ) from None
        if phrases:
            self.record(f"Changed {'; '.join(phrases)}.", row)
        return Response(_settings())


def _settings() -> Any:
    return SettingsSerializer({"settings": product_settings.live_settings().values()}).data
