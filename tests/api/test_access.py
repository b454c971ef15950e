"""Who is let in, and to what."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.urls import get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from access.permissions import Access
from identity import models as identity
from tests.api.clients import administrator, agent, staff_session
from tests.factories import make_source

pytestmark = pytest.mark.django_db

LISTS = [
    "/api/sources/", "/api/workflows/", "/api/toolsets/", "/api/discovery-runs/", "/api/executions/",
    "/api/history/",
]  # fmt: skip


DESCRIBED = 'resource_metadata="http://localhost:8000/.well-known/oauth-protected-resource"'
"""RFC 9728: where clients find the server that gives tokens."""


@pytest.mark.parametrize("address", [*LISTS, "/api/", "/api/schema/", "/api/nowhere/"])
def test_without_a_token_the_answer_is_401_and_says_how_to_present_one(address):
    response = APIClient().get(address)

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == f"Bearer {DESCRIBED}"
    assert "Authorization: Bearer" in response.json()["detail"]


@pytest.mark.parametrize("text", ["wfc_wrong", "wfc_" + "x" * 10_000, "ü", "", "a b c"])
def test_an_unknown_token_gets_401_also_beside_a_session(text):
    client = staff_session("view_source")

    response = client.get("/api/sources/", HTTP_AUTHORIZATION=f"Bearer {text}")

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == f'Bearer error="invalid_token", {DESCRIBED}'
    assert "expired or revoked" in response.json()["detail"]


def test_revoked_and_expired_tokens_are_refused():
    revoked, expired = administrator(), administrator()
    revoked.token.revoke()
    identity.AccessToken.objects.filter(pk=expired.token.pk).update(
        expires_at=timezone.now() - timedelta(days=1)
    )

    assert [client.get("/api/sources/").status_code for client in (revoked, expired)] == [401, 401]


@pytest.mark.parametrize("address", ["/api/sources/", "/api/discovery-runs/"])
def test_a_refusal_names_the_scope_that_is_missing(address):
    response = agent().get(address)

    assert response.status_code == 403
    assert "the scope catalogue:read: see by REST" in response.json()["detail"]
    wanted = "catalogue:read workflows:read workflows:run"
    expected = f'Bearer error="insufficient_scope", scope="{wanted}", {DESCRIBED}'
    assert response["WWW-Authenticate"] == expected


def test_a_session_of_staff_counts_as_administrator_within_djangos_permissions():
    make_source("orders")
    client = staff_session("view_source")

    assert client.get("/api/sources/").json()["count"] == 1
    refused = client.post("/api/sources/", {"name": "x", "kind": "simplified"})
    assert refused.status_code == 403
    assert "catalogue.add_source" in refused.json()["detail"]


def test_a_session_of_somebody_who_is_no_staff_is_refused():
    client = APIClient()
    client.force_login(User.objects.create_user("visitor"))

    response = client.get("/api/workflows/")

    assert response.status_code == 403
    assert "staff" in response.json()["detail"]


def test_a_session_needs_a_csrf_token_to_change_anything():
    source = make_source()
    client = staff_session("change_source", enforce_csrf_checks=True)

    response = client.patch(f"/api/sources/{source.name}/", {"enabled": False})

    assert response.status_code == 403
    assert "CSRF" in response.json()["detail"]


def test_every_action_of_every_view_says_whom_it_lets_in():
    views = {pattern.callback.cls for pattern in _api_patterns() if hasattr(pattern.callback, "actions")}
    for view in views:
        actions = {
            action
            for pattern in _api_patterns()
            if getattr(pattern.callback, "cls", None) is view
            for action in pattern.callback.actions.values()
        }
        assert actions == set(view.access), view
        assert all(isinstance(access, Access) for access in view.access.values())
    assert len(views) == 23


def _api_patterns():
    api = next(item for item in get_resolver().url_patterns if str(item.pattern) == "api/")
    return api.url_patterns
