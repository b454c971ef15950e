"""The wiring of the rooms, and the product as a Django app."""

import atexit
import gc
from importlib import import_module

from django.apps import AppConfig, apps
from django.conf import settings as django_settings  # `config.settings` is the module
from django.core.checks import Warning, register
from django.utils.translation import gettext_lazy

# At exit, the interpreter searches everything imported for cycles: a third of a second of CPU time.
atexit.register(gc.freeze)


class ProductConfig(AppConfig):
    name = "config"
    label = "product"
    verbose_name = "Workflow Catalogue"

    def ready(self) -> None:
        """Sets the current Celery app before any task is sent."""
        import_module("config.celery")
        register(_check_scheme)
        # Django makes names of models and fields from those in the code, in which no call of gettext stands.
        # The command `makemessages` of this app collects them.
        for model in apps.get_models(include_auto_created=True):
            if "verbose_name_plural" not in model._meta.original_attrs:
                # Django appends an "s" to the name, which is wrong in other languages.
                model._meta.verbose_name_plural = str(model._meta.verbose_name_plural)
            for named in (model._meta, *model._meta.local_fields, *model._meta.local_many_to_many):
                for kind in ("verbose_name", "verbose_name_plural"):
                    if isinstance(name := getattr(named, kind, None), str):
                        setattr(named, kind, gettext_lazy(name))


def _check_scheme(app_configs: object, **_: object) -> list[Warning]:
    if not django_settings.CATALOGUE.trusted_proxies or django_settings.PUBLIC_URL.startswith("https:"):
        return []
    problem = "CATALOGUE_TRUSTED_PROXIES is set, and CATALOGUE_PUBLIC_URL is http."
    hint = "If clients use https, set its address: cookies are otherwise sent over http, too."
    return [Warning(problem, hint, id="product.W001")]
