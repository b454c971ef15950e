"""The pages of the second factor in a real browser: each control, and how they look."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from identity.models import SecondFactor
from tests.admin.test_pages_in_a_browser import KEPT, NARROW, PICTURES, WIDE, axe, axe_problems, overflowing
from tests.admin.test_second_factor import PAGE, PASSWORD, clock, code_of
from tests.admin.window import Window
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING

__all__ = ["axe", "clock"]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]
Look = Callable[[str], None]
ON_PAGE = f"location.pathname === '{PAGE}'"


@pytest.fixture
def look(window: Window, axe: str) -> Look:
    """At the page as it is, in each size and colour; nothing of it is loaded again."""

    def look_at(name: str) -> None:
        for colours in ("light", "dark"):
            is_dark = str(colours == "dark").lower()
            window.run(f"document.documentElement.classList.toggle('dark', {is_dark})")
            problems = axe_problems(window, axe)
            for width in (NARROW, WIDE):
                window.browser.resize(width)
                assert not overflowing(window)
                if KEPT:
                    PICTURES.mkdir(parents=True, exist_ok=True)
                    picture = window.browser.picture()
                    (PICTURES / f"second-factor-{name}-{width}-{colours}.png").write_bytes(picture)
            assert not problems, problems
        window.run("document.documentElement.classList.remove('dark')")
        assert window.browser.complaints() == []

    return look_at


def log_in(window: Window) -> None:
    """With name and password, as far as these lead."""
    window.open("/admin/login/?next=/admin/catalogue/source/")
    window.run(f"document.querySelector('#id_username').value = '{ADA}'")
    window.run(f"document.querySelector('#id_password').value = '{PASSWORD}'")
    window.click_through("#login-form button[type=submit]")


def send(window: Window, code: str, button: str = "#second-factor-form button") -> None:
    window.click("#code")
    window.browser.press(*code)
    window.click_through(button)


def leave(window: Window) -> None:
    window.browser.devtools("Network.clearBrowserCookies")


ADA = "ada"


def test_a_person_sets_it_up_logs_in_with_it_and_removes_it(window, clock, look):
    window.browser.complaints()
    leave(window)
    log_in(window)
    window.click("div[x-bind\\:class*='openUserLinks']")
    window.click_through(f"nav a[href='{PAGE}']")
    look("set-up")
    assert window.run("return document.querySelector('#picture svg').getBoundingClientRect().width") > 150
    send(window, code_of(clock))
    look("recovery-codes")
    codes = window.run(
        "return [...document.querySelectorAll('#recovery-codes li')].map(one => one.innerText)"
    )
    assert len(codes) == 10
    window.click_through("a[href='/admin/']")
    clock.now += 60

    leave(window)
    log_in(window)
    assert window.run(f"return {ON_PAGE}")
    look("asked")
    window.click_through("#leave-form button")
    log_in(window)
    send(window, "000000")
    window.browser.wait_for_text("This code is wrong")
    window.browser.complaints()  # Chromium notes the refusal
    look("wrong")
    send(window, code_of(clock))
    assert window.run("return location.pathname") == "/admin/catalogue/source/"
    leave(window)
    log_in(window)
    send(window, codes[0])
    assert window.run("return location.pathname") == "/admin/catalogue/source/"

    window.open(PAGE)
    window.browser.wait_for_text("9 recovery codes")
    look("status")
    window.click_through("a[href='/admin/']")
    window.open(PAGE)
    clock.now += 60
    send(window, code_of(clock), "button[value=renew]")
    window.browser.wait_for_text("Store these recovery codes")
    window.open(PAGE)
    clock.now += 60
    send(window, code_of(clock), "button[value=remove]")
    window.browser.wait_for_text("no longer has a second factor")
    assert not SecondFactor.objects.exclude(confirmed_at=None).exists()


def test_an_owner_resets_a_colleague_s(window, clock):
    ada = User.objects.get(username=ADA)
    SecondFactor.objects.create(user=ada, encrypted_key="x", confirmed_at="2026-01-01T00:00Z")
    window.open(f"/admin/auth/user/{ada.pk}/change/")
    window.click("form[action$='/reset_second_factor/'] button")
    assert "Remove the second factor" in window.browser.answer_question()
    window.browser.wait_for_text("no longer has a second factor")
    assert not SecondFactor.objects.exists()
