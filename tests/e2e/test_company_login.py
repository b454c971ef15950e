"""People log in at a real OpenID provider, with a real browser."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests import plain_http
from tests.e2e.node_tools import node
from tests.e2e.openid_provider import RESOURCE_SERVER, SECRET, OpenIdProvider, SigningKey
from tests.e2e.product import Product, another_web
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING, RealBrowser, real_browser

__all__ = ["node"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

METADATA = "/.well-known/openid-configuration"
ACCOUNTS = {
    "ada": {"preferred_username": "ada.company", "groups": ["platform-team", "others"]},
    "bob": {"preferred_username": "bob.company", "groups": []},
    "eve": {"preferred_username": "admin", "groups": ["platform-team"]},
    "old": {"preferred_username": "old.company", "groups": ["platform-team"]},
}
MAKE_GROUPS = """
from django.contrib.auth.models import Group, Permission, User
curator, _ = Group.objects.get_or_create(name="Curator")
curator.permissions.set(Permission.objects.filter(codename__in=["view_workflow", "view_source"]))
Group.objects.get_or_create(name="Operator")
User.objects.get_or_create(username="old.company", defaults={"is_active": False})
"""
DESCRIBE = """
import json
from django.contrib.auth.models import User
user = User.objects.get(username="{name}")
print(json.dumps([user.is_staff, user.is_superuser, user.has_usable_password(),
    sorted(user.groups.values_list("name", flat=True))]))
"""


@dataclass
class Company:
    """The product beside the company's provider, and a browser that has logged in nowhere."""

    product: Product
    provider: OpenIdProvider
    address: str
    browser: RealBrowser

    def run(self, script: str) -> str:
        return self.product.manage("shell", "--no-imports", "-c", script)

    def describe(self, name: str) -> list[object]:
        """Is staff, is superuser, has a password, groups."""
        found: list[object] = json.loads(self.run(DESCRIBE.format(name=name)))
        return found

    def log_in(self, account: str, *, page: str = "/admin/") -> None:
        self.browser.open(f"{self.address}{page}")
        self.browser.click('a[href^="/login/company/"]')
        self.browser.wait_for("document.querySelector('input[name=login]')")
        assert self.browser.run("return location.origin") == self.provider.issuer
        self.browser.run(f"document.querySelector('input[name=login]').value = '{account}'")
        self.browser.run("document.querySelector('input[name=password]').value = 'any'")
        self.browser.click("button[type=submit]")
        self.browser.wait_for("document.querySelector('input[name=prompt][value=consent]')")
        self.browser.click("button[type=submit]")
        self.browser.wait_for(f"location.origin === '{self.address}' && document.readyState === 'complete'")

    def forget_logins(self) -> None:
        for address, page in ((self.address, "/favicon.ico"), (self.provider.issuer, METADATA)):
            self.browser.open(f"{address}{page}")
            self.browser.devtools("Network.clearBrowserCookies")


@pytest.fixture(scope="module")
def provider(node: Path, tmp_path_factory: pytest.TempPathFactory) -> OpenIdProvider:
    return OpenIdProvider(node, tmp_path_factory.mktemp("provider"), ACCOUNTS)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBrowser]:
    with real_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def settings(provider: OpenIdProvider) -> dict[str, str]:
    return {
        "CATALOGUE_LOGIN_ISSUER": provider.issuer,
        "CATALOGUE_LOGIN_CLIENT_ID": RESOURCE_SERVER,
        "CATALOGUE_LOGIN_CLIENT_SECRET": SECRET,
        "CATALOGUE_LOGIN_NAME": "Example Corp",
        "CATALOGUE_LOGIN_USER_CLAIM": "preferred_username",
        "CATALOGUE_LOGIN_CREATES_USERS": "true",
        "CATALOGUE_LOGIN_ENDS_AT_PROVIDER": "true",
        "CATALOGUE_LOGIN_GROUPS": '{"platform-team": "Curator", "night-shift": "Operator"}',
    }


@pytest.fixture(scope="module")
def company(
    product: Product,
    provider: OpenIdProvider,
    browser: RealBrowser,
    settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Company]:
    with another_web(product, tmp_path_factory.mktemp("company"), **settings) as url:
        address = url.removesuffix("/mcp").replace("127.0.0.1", "localhost")
        provider.redirects = [f"{address}/login/company/callback"]
        provider.after_logout = [f"{address}/admin/login/"]
        company = Company(product, provider, address, browser)
        company.run(MAKE_GROUPS)
        with provider.running(SigningKey("one")):
            yield company


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(company: Company) -> None:
    company.forget_logins()


def test_a_person_logs_in_at_the_company_and_works_with_the_role_of_their_group(company):
    company.log_in("ada", page="/admin/catalogue/source/")
    assert company.browser.run("return location.pathname") == "/admin/catalogue/source/"
    assert company.describe("ada.company") == [True, False, False, ["Curator"]]
    company.browser.open(f"{company.address}/admin/auth/user/")
    company.browser.wait_for_text("Not allowed")
    company.browser.open(f"{company.address}/admin/")
    company.browser.click("div[x-bind\\:class*='openUserLinks']")
    company.browser.click("#logout-form button")
    company.browser.wait_for(f"location.origin === '{company.provider.issuer}'")
    company.browser.wait_for("document.querySelector('button[name=logout]')")
    company.browser.click("button[name=logout]")
    company.browser.wait_for_text("Log in with Example Corp")
    assert company.browser.run("return location.origin") == company.address
    company.browser.click('a[href^="/login/company/"]')
    company.browser.wait_for("document.querySelector('input[name=login]')")  # Logged out there too


def test_a_login_that_was_begun_elsewhere_is_not_completed_here(company):
    """State: nobody can be logged in as another person by a link."""
    for query in (
        "code=x&state=y",
        "error=access_denied&error_description=Call+us",
        "",
        "code=x&state=y&iss=x",
    ):
        company.browser.open(f"{company.address}/login/company/callback?{query}")
        company.browser.wait_for_text("was not completed. Try again")
        assert "Call us" not in company.browser.text()


def test_a_login_asks_with_pkce_nonce_and_state_and_goes_to_no_other_site_afterwards(company):
    begun = plain_http.get(f"{company.address}/login/company/?next=https://evil.example/", timeout=20)
    assert begun.status_code == 302
    asked = parse_qs(urlsplit(begun.headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert all(len(asked[name][0]) >= 32 for name in ("code_challenge", "nonce", "state"))
    company.log_in("ada", page="/admin/login/?next=https://evil.example/")
    assert company.browser.run("return location.origin") == company.address
