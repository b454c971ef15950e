"""The pages of the authorization server in a real browser: in words, in both colours, on a narrow screen."""

from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from oauth2_provider.models import Application

from identity.models import AllowedApplication
from tests.admin.test_pages_in_a_browser import KEPT, NARROW, PICTURES, WIDE, axe, axe_problems, overflowing
from tests.admin.window import Window, chromium, make_everything, site, window
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING

__all__ = ["axe", "chromium", "site", "window"]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

REDIRECT = "http://127.0.0.1:9/callback"
STRANGE = "\u0421l\u0430ude " + "very" * 23  # A word wider than the page, in bold


def application(window: Window) -> dict[str, str]:
    """A registered one, and the pages that it leads to."""
    make_everything(User.objects.get())
    known, strange = (
        Application.objects.create(
            name=name,
            redirect_uris=REDIRECT,
            client_type="public",
            client_secret="",
            hash_client_secret=False,
            authorization_grant_type="authorization-code",
            registration_source="dcr",
        )
        for name in ("Desk Agent", STRANGE)
    )
    query = {
        "response_type": "code",
        "client_id": known.client_id,
        "redirect_uri": REDIRECT,
        "code_challenge": "x" * 43,
        "code_challenge_method": "S256",
        "state": "s1",
    }
    return {
        "consent": f"/oauth/authorize?{urlencode(query)}",
        "consent_with_everything": f"/oauth/authorize?{urlencode(query | {'scope': 'catalogue:admin'})}",
        "consent_to_strange_name": f"/oauth/authorize?{urlencode(query | {'client_id': strange.client_id})}",
        "consent_refused": "/oauth/authorize?client_id=unknown",
        "my_applications": "/oauth/applications",
        "sign_in": "/oauth/sign-in",
    }


@pytest.mark.parametrize(
    "name",
    [
        "consent",
        "consent_with_everything",
        "consent_to_strange_name",
        "consent_refused",
        "my_applications",
        "sign_in",
    ],
)
def test_every_page_fits_its_window_and_can_be_used_without_sight(window, axe, name):
    path = application(window)[name]
    window.browser.complaints()
    window.open(path)
    assert len(window.run("return document.title.split('|')[0].trim()")) > 2
    problems = []
    for colours in ("light", "dark"):
        window.browser.prefer(colours)
        window.browser.reload()
        window.settle()
        problems += axe_problems(window, axe)
        for width in (NARROW, WIDE):
            window.browser.resize(width)
            assert not (too_wide := overflowing(window)), too_wide
            if KEPT:
                PICTURES.mkdir(parents=True, exist_ok=True)
                (PICTURES / f"oauth_{name}-{width}-{colours}.png").write_bytes(window.browser.picture())
    expected = "400 (Bad Request)" if name == "consent_refused" else "none"
    assert [one for one in window.browser.complaints() if expected not in one] == []
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("button", "allowed"), [("allow", True), ("refuse", False)])
def test_both_buttons_lead_back_to_the_application(window, button, allowed):
    window.open(application(window)["consent"])
    before = AllowedApplication.objects.filter(name="Desk Agent").count()
    window.browser.click(f"[name={button}]")
    window.browser.wait_for("!document.querySelector('#consent')")
    assert AllowedApplication.objects.filter(name="Desk Agent").count() - before == int(allowed)


def test_an_application_is_revoked_by_its_button(window):
    pages: Any = application(window)
    allowed = AllowedApplication.objects.create(
        user=User.objects.get(username="admin"),
        application=Application.objects.get(name="Desk Agent"),
        name="Desk Agent",
        scopes=["workflows:read"],
        allowed_at="2026-11-01T00:00Z",
    )
    window.open(pages["my_applications"])
    window.click_through(f"form[action$='/{allowed.pk}/revoke'] [type=submit]")
    assert "Desk Agent can no longer act on your behalf" in window.browser.text()
    allowed.refresh_from_db()
    assert allowed.revoked_at is not None
