from django.apps import AppConfig


class OrchestrationConfig(AppConfig):
    name = "orchestration"

    def ready(self) -> None:
        from orchestration import records  # noqa: F401 - registers itself for pruning
