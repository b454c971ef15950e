from django.apps import AppConfig


class ExecutionsConfig(AppConfig):
    name = "executions"

    def ready(self) -> None:
        from executions import result_cache  # noqa: F401 - registers itself for imports
