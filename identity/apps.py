from typing import Any

from django.apps import AppConfig


class IdentityConfig(AppConfig):
    name = "identity"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        user_logged_in.connect(_note_login)


def _note_login(request: Any, user: Any, **_: Any) -> None:
    from identity.second_factor import note_login

    request.session.set_expiry(None)  # A company login that was begun before has shortened it
    note_login(request, user)
