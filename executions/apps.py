from typing import Any

from django.apps import AppConfig


class ExecutionsConfig(AppConfig):
    name = "executions"

    def ready(self) -> None:
        from catalogue.imports import cache_takers
        from executions import audit

        cache_takers.append(_take_cache_settings)
        audit.follow_calls()


def _take_cache_settings(*args: Any, **options: Any) -> list[str]:
    from executions.result_cache import take_cache_settings

    return take_cache_settings(*args, **options)
