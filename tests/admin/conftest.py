"""People in front of the admin, and an engine whose connector another package brought."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from connectors.registry import forget_connectors
from tests.admin.window import chromium, running_chromium, site, window
from tests.packages import declare_package

__all__ = ["chromium", "running_chromium", "site", "window"]

StaffWith = Callable[..., Client]


@pytest.fixture
def admin_client(db: None) -> Client:
    """A superuser without a password: hashing one for each test would take longer than the tests."""
    return _logged_in(User.objects.create(username="admin", is_staff=True, is_superuser=True))


@pytest.fixture
def staff_with(db: None) -> StaffWith:
    """A logged-in member of staff with these permissions and no others."""

    def make(*codenames: str) -> Client:
        user = User.objects.create(username="member", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return _logged_in(user)

    return make


def _logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ledger_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A second kind of source, installed as another package would be."""
    declare_package(tmp_path, "ledger-engine", ledger="tests.admin.ledger:LedgerConnector")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "ledger"
    forget_connectors()
