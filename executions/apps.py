from django.apps import AppConfig


class ExecutionsConfig(AppConfig):
    name = "executions"
    verbose_name = "Runs and approvals"

    def ready(self) -> None:
        from catalogue.configuration import add_section
        from catalogue.imports import cache_takers
        from executions import audit
        from executions.models import Retention
        from executions.result_cache import take_cache_settings

        cache_takers.append(take_cache_settings)
        add_section("retention", Retention)
        audit.follow_calls()
