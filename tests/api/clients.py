"""Callers of the API, each with what it may do."""

import itertools

from django.contrib.auth.models import Permission, User
from rest_framework.test import APIClient

from access.callers import Scope
from identity.models import AccessToken
from identity.tokens import create_token

_numbers = itertools.count(1)


class TokenClient(APIClient):
    """Sends an access token of its own with every request."""

    def __init__(self, *scopes: Scope) -> None:
        super().__init__()
        self.token: AccessToken
        self.token, self.text = create_token(name=f"client {next(_numbers)}", scopes=scopes)
        self.credentials(HTTP_AUTHORIZATION=f"Bearer {self.text}")


def administrator() -> TokenClient:
    return TokenClient(Scope.ADMIN)


def agent() -> TokenClient:
    """May read and run what is exposed."""
    return TokenClient(Scope.READ, Scope.RUN)


def staff_session(*permissions: str, enforce_csrf_checks: bool = False) -> APIClient:
    """A signed-in member of staff with Django's permissions of these code names."""
    user = User.objects.create_user(f"curator-{next(_numbers)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = APIClient(enforce_csrf_checks=enforce_csrf_checks)
    client.force_login(user)
    return client


def problem_paths(response) -> list[str]:
    """The offending places that a refusal names."""
    return [problem["path"] for problem in response.json()["errors"]]
