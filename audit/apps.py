from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "audit"

    def ready(self) -> None:
        from audit.models import follow_sign_ins

        follow_sign_ins()
