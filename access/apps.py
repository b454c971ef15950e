from typing import Any

from django.apps import AppConfig
from django.apps.registry import Apps
from django.apps.registry import apps as present_apps
from django.db.models.signals import post_migrate


class AccessConfig(AppConfig):
    name = "access"

    def ready(self) -> None:
        post_migrate.connect(keep_roles_up_to_date)


def keep_roles_up_to_date(app_config: AppConfig, apps: Apps = present_apps, **_: Any) -> None:
    """Runs after Django has created an app's permissions, if roles have some of them."""
    from access import roles

    # Migrations may stop before the model exists.
    if app_config.label in roles.SEEN and "role" in apps.all_models["catalogue"]:
        roles.keep_roles()
