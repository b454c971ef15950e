"""What browsers and caches are told."""

import json
import os
from contextlib import closing

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.api.clients import administrator
from tests.factories import make_source
from tests.mcp_bridge.conftest import mcp_server as mcp_server  # noqa: PLC0414
from tests.processes import run_python

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("address", ["/admin/login/", "/admin/", "/admin/nowhere/", "/"])
def test_pages_run_no_scripts_but_our_files(address):
    """E6: whatever engines and agents have written into them."""
    client = Client()
    client.force_login(User.objects.create(username="ada", is_staff=True, is_superuser=True))
    policy = dict(part.split(" ", 1) for part in client.get(address)["Content-Security-Policy"].split("; "))
    if address != "/":
        assert policy["script-src"] == "'self' 'unsafe-eval'"
        assert policy["object-src"] == policy["base-uri"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"


@pytest.mark.parametrize(
    "address", ["/api/", "/api/sources/", "/api/schema/", "/api/nowhere/", "/tools", "/workflow"]
)
def test_answers_of_the_api_are_kept_by_no_cache(address):
    """E6: neither are refusals."""
    make_source()
    for client in (administrator(), Client()):
        answer = client.get(address)
        assert answer["Cache-Control"] == "no-store"
        assert answer["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/admin/", 200),
        ("/admin/password_change/", 200),
        ("/admin/jsi18n/", 200),
        ("/admin/nowhere/", 404),
        ("/admin/catalogue/source/999999/change/", 302),
        ("/nowhere", 404),
        ("/", 302),
    ],
)
def test_pages_behind_the_login_are_kept_by_no_cache(address, status):
    """Neither are those that are not there, nor refusals of forms."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create(username="ada", is_staff=True, is_superuser=True))
    for answer in (client.get(address), client.post("/admin/password_change/")):
        assert "no-store" in answer["Cache-Control"]
        assert answer.status_code in (status, 403)


def test_files_may_be_kept():
    with closing(Client().get("/static/config/favicon.svg")) as answer:
        assert "max-age" in answer["Cache-Control"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("public_url", "told"),
    [("https://catalogue.example.com", "max-age=31536000"), ("http://localhost", None)],
)
def test_browsers_that_came_by_https_go_on_so(public_url, told):
    program = (
        "import django, json\n"
        "django.setup()\n"
        "from django.test import Client\n"
        "headers = {'x-forwarded-proto': 'https'}\n"
        "answer = Client(raise_request_exception=False).get('/nowhere', headers=headers)\n"
        "print(json.dumps(answer.get('Strict-Transport-Security')))\n"
    )
    environment = os.environ | {
        "CATALOGUE_PUBLIC_URL": public_url,
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    outcome = run_python(["-c", program], environment=environment)
    assert json.loads(outcome.stdout.splitlines()[-1]) == told


@pytest.mark.django_db(transaction=True)
def test_a_large_body_without_a_good_token_is_answered_as_one_without_a_token(mcp_server):
    """E6: it is not taken at all; somebody who has signed in or has a token may send it."""
    from tests import plain_http

    body = json.dumps({"name": "x" * 200_000})
    known, headers = administrator(), {"content-type": "application/json"}
    user = User.objects.create(username="ada", is_staff=True, is_superuser=True)
    session = Client()
    session.force_login(user)
    cookie = f"sessionid={session.cookies['sessionid'].value}"
    for given, status in (
        ({}, 401),
        ({"authorization": "Bearer wfc_wrong"}, 401),
        ({"cookie": "sessionid=made-up"}, 401),
        ({"authorization": f"Bearer {known.text}"}, 400),
        ({"cookie": cookie}, 403),
    ):
        answer = plain_http.post(
            f"{mcp_server.base_url}/api/sources/", content=body, headers=headers | given, timeout=20
        )
        assert answer.status_code == status, given
        assert "detail" in answer.json()
    assert "CSRF" in answer.json()["detail"]
