"""The second factor: no way round it, no code twice, and a way back."""

import base64
import hashlib
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from pytest_django import Settings

from audit.models import Entry
from catalogue.models import HistoryEntry
from identity import second_factor
from identity.authentication import CODES
from identity.models import AllowedApplication, FailureCount, SecondFactor
from tests.admin.pages import text_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("identity.second_factor", "identity.models"),
]

PASSWORD = "correct horse battery"
PAGE = "/admin/second-factor/"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Clock:
    clock = Clock()
    monkeypatch.setattr(second_factor, "time", clock)
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    User.objects.create_superuser("ada", password=PASSWORD)
    return clock


def code_of(clock: Clock, *, steps: int = 0, name: str = "ada") -> str:
    """What the app shows, or has shown or will show so many steps from now."""
    key = second_factor.key_of(SecondFactor.objects.get(user__username=name))
    totp = TOTP(second_factor.base64.b32decode(key), 6, SHA1(), 30)
    return totp.generate(int(clock.now) + 30 * steps).decode()


def log_in(name: str = "ada", page: str = "/admin/") -> Client:
    """As far as the password."""
    client = Client()
    answer = client.post("/admin/login/", {"username": name, "password": PASSWORD, "next": page})
    assert answer.status_code == 302, text_of(answer)
    return client


def enrol(clock: Clock) -> tuple[Client, list[str]]:
    """The session that did it, and the recovery codes."""
    client = log_in()
    client.get(PAGE)
    page: Any = client.post(PAGE, {"code": code_of(clock)})
    clock.now += 60
    return client, page.context_data["codes"]


def is_in(client: Client) -> bool:
    statuses = {client.get("/admin/").status_code, client.get("/api/sources/").status_code}
    assert len(statuses & {200}) == len(statuses) or 200 not in statuses, "both doors agree"
    return 200 in statuses


def test_after_the_password_the_code_is_asked_for_at_every_door(clock):
    enrol(clock)
    client = log_in()
    for path in ("/admin/catalogue/source/", "/admin/login/", "/admin/password_change/", "/admin/nowhere/"):
        answer = client.get(path)
        assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, PAGE)
    assert client.post("/admin/password_change/", {}).status_code == 302
    for path in ("/api/sources/", "/api/docs/", "/api/schema/", "/tools"):
        assert client.get(path).status_code in (302, 401, 403)
    assert client.post("/api/sources/", {}).status_code in (401, 403)
    assert not is_in(client)
    answer = client.post(f"{PAGE}?next=/admin/catalogue/source/", {"code": code_of(clock)})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/catalogue/source/")
    assert is_in(client)


def test_an_application_is_signed_in_after_the_code_and_not_before(clock):
    """The pages of applications ask for the code too, and go on where the person wanted to go."""
    enrol(clock)
    metadata = {"client_name": "Agent", "redirect_uris": ["http://127.0.0.1:4711/callback"]}
    registered = Client().post("/oauth/register", metadata, content_type="application/json").json()
    challenge = base64.urlsafe_b64encode(hashlib.sha256(b"x" * 50).digest()).decode().rstrip("=")
    asked = {
        "response_type": "code", "client_id": registered["client_id"], "state": "s",
        "redirect_uri": metadata["redirect_uris"][0], "code_challenge": challenge,
        "code_challenge_method": "S256",
    }  # fmt: skip
    for wanted in (f"/oauth/authorize?{urlencode(asked)}", "/oauth/applications"):
        browser = Client()
        to_sign_in = browser.get(wanted)["Location"]
        assert to_sign_in.startswith("/oauth/sign-in?next=")
        assert browser.post(to_sign_in, {"username": "ada", "password": PASSWORD})["Location"] == wanted
        assert "Password" in text_of(browser.get(to_sign_in)), "another account can sign in instead"
        assert not browser.post(wanted, {"allow": "yes"})["Location"].startswith("http://127.0.0.1:4711")
        to_code = browser.get(wanted)["Location"]
        assert to_code.partition("?")[0] == PAGE
        assert browser.post(to_code, {"code": code_of(clock)})["Location"] == wanted
        assert browser.get(wanted).status_code == 200
        clock.now += 60
    assert not AllowedApplication.objects.exists()


def test_the_audit_has_right_and_wrong_codes(clock):
    """A password alone is entered as a sign-in; without these lines it would look like a whole one."""
    enrol(clock)
    client = log_in()
    client.post(PAGE, {"code": "000000"}, REMOTE_ADDR="203.0.113.9")
    client.post(PAGE, {"code": code_of(clock)}, REMOTE_ADDR="203.0.113.9")
    codes = Entry.objects.filter(event__startswith="second_factor", address="203.0.113.9").order_by("pk")
    assert list(codes.values_list("kind", "event", "outcome", "actor_name", "address")) == [
        ("sign_in", "second_factor.failed", "failed", "ada", "203.0.113.9"),
        ("sign_in", "second_factor.passed", "succeeded", "ada", "203.0.113.9"),
    ]


def test_the_page_leads_to_no_other_site(clock):
    enrol(clock)
    answer = log_in().post(f"{PAGE}?next=https://evil.example/", {"code": code_of(clock)})
    assert answer["Location"] == "/admin/"


@pytest.mark.parametrize("steps", [-2, 2])
def test_codes_of_other_times_are_wrong(clock, steps):
    enrol(clock)
    client = log_in()
    assert client.post(PAGE, {"code": code_of(clock, steps=steps)}).status_code == 400
    assert not is_in(client)


@pytest.mark.parametrize("text", ["", "0", "abcdef", "١٢٣٤٥٦", "1" * 40, "a" * 16, "\x00"])
def test_what_is_no_code_is_refused(clock, text):
    enrol(clock)
    client = log_in()
    assert client.post(PAGE, {"code": text}).status_code == 400
    assert not is_in(client)


def test_a_code_counts_once_also_for_several_at_once(clock):
    enrol(clock)
    clients, code = [log_in() for _ in range(4)], code_of(clock)

    def send(client: Client) -> int:
        try:
            return int(client.post(PAGE, {"code": code}).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(send, clients)) == [302, 400, 400, 400]
    assert log_in().post(PAGE, {"code": code_of(clock, steps=-1)}).status_code == 400, "nor an older one"


def test_codes_count_again_after_the_clock_was_set_back(clock):
    """All were refused until the time of the last code was reached; each still counts once."""
    clock.now += 86_400
    enrol(clock)
    clock.now -= 86_400
    assert log_in().post(PAGE, {"code": code_of(clock)}).status_code == 302
    assert log_in().post(PAGE, {"code": code_of(clock)}).status_code == 400


def test_a_recovery_code_opens_once_and_new_ones_end_the_others(clock):
    client, codes = enrol(clock)
    assert len(set(codes)) == second_factor.RECOVERY_CODES
    for typed, status in ((codes[0], 302), (codes[0], 400), (codes[1].upper().replace("-", " "), 302)):
        assert log_in().post(PAGE, {"code": typed}).status_code == status
    assert "8 recovery codes" in text_of(client.get(PAGE))
    page: Any = client.post(PAGE, {"code": code_of(clock), "do": "renew"})
    assert log_in().post(PAGE, {"code": codes[2]}).status_code == 400
    assert log_in().post(PAGE, {"code": page.context_data["codes"][2]}).status_code == 302


def test_codes_are_not_tried_at_will_from_however_many_addresses(clock):
    enrol(clock)
    clients = [log_in() for _ in range(3)]
    for number in range(CODES.failures):
        answer = clients[number % 3].post(PAGE, {"code": "000000"}, REMOTE_ADDR=f"192.0.2.{number}")
        assert "This code is wrong" in text_of(answer)
    answer = clients[0].post(PAGE, {"code": code_of(clock)}, REMOTE_ADDR="192.0.2.99")
    assert "Too many failed attempts" in text_of(answer)
    assert not is_in(clients[0])
    FailureCount.objects.all().delete()
    assert clients[0].post(PAGE, {"code": code_of(clock)}).status_code == 302


def test_nothing_of_it_stands_in_the_database_as_it_is(clock):
    _, codes = enrol(clock)
    factor = SecondFactor.objects.get()
    stored = f"{factor.encrypted_key} {factor.recovery_digests}"
    assert second_factor.key_of(factor) not in stored
    assert not any(code.replace("-", "") in stored for code in codes)


def test_one_that_was_not_confirmed_is_not_asked_for(clock):
    client = log_in()
    assert client.get(PAGE).status_code == 200
    assert client.post(PAGE, {"code": "000000"}).status_code == 400
    assert is_in(log_in())


def test_staff_set_it_up_before_anything_else_where_the_setting_says_so(clock, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"second_factor": "staff"}
    client = log_in()
    assert not is_in(client)
    assert "requires a second factor" in text_of(client.get(PAGE))
    client.post(PAGE, {"code": code_of(clock)})
    assert is_in(client)
    clock.now += 60
    client.post(PAGE, {"code": code_of(clock), "do": "remove"})
    assert SecondFactor.objects.exists(), "nor may they remove it"


def test_a_user_removes_it_with_a_code_and_the_history_tells(clock):
    client, _ = enrol(clock)
    assert client.post(PAGE, {"code": "000000", "do": "remove"}).status_code == 400
    assert client.post(PAGE, {"code": code_of(clock), "do": "remove"}).status_code == 302
    assert is_in(log_in())
    assert set(HistoryEntry.objects.filter(object_name="ada").values_list("message", flat=True)) >= {
        "Set up a second factor.",
        "Removed the second factor.",
    }


def test_an_administrator_resets_it_and_others_do_not(clock):
    enrol(clock)
    ada = User.objects.get()
    helper = User.objects.create_user("helper", password=PASSWORD, is_staff=True)
    helper.user_permissions.set(Permission.objects.filter(codename__in=("change_user", "view_user")))
    reset = f"/admin/auth/user/{ada.pk}/reset_second_factor/"
    assert log_in("helper").post(reset).status_code == 403, "ada has more permissions"
    assert SecondFactor.objects.exists()
    boss = User.objects.create_superuser("boss", password=PASSWORD)
    client = Client()
    client.force_login(boss)
    assert client.post(reset).status_code == 302
    assert not SecondFactor.objects.exists()
    assert HistoryEntry.objects.filter(object_name="ada", actor_name="boss").exists()


def test_an_operator_resets_the_only_administrator_s_on_the_machine(clock):
    enrol(clock)
    told = StringIO()
    call_command("reset_second_factor", "ada", stdout=told)
    assert told.getvalue() == "ada no longer has a second factor.\n"
    assert is_in(log_in())
    assert HistoryEntry.objects.filter(
        object_name="ada", message="Reset the second factor.", actor_name="manage.py reset_second_factor"
    ).exists()
    call_command("reset_second_factor", "ada", stdout=told)
    assert told.getvalue().endswith("ada has no second factor.\n")
    with pytest.raises(CommandError, match="No such user: bob"):
        call_command("reset_second_factor", "bob")


def test_a_key_that_a_lost_secret_key_has_made_unreadable_is_no_wrong_code(clock, settings):
    _, codes = enrol(clock)
    code = code_of(clock)
    settings.SECRET_KEY = "n" * 50
    client = log_in()
    page = client.post(PAGE, {"code": code})
    assert page.status_code == 400 and "SECRET_KEY has changed. Enter a recovery code" in text_of(page)
    assert client.post(PAGE, {"code": codes[0]}).status_code == 302


def test_a_new_secret_key_keeps_it(clock, settings):
    enrol(clock)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "n" * 50, [settings.SECRET_KEY]
    settings.SECRET_KEY_FILE = None
    told = StringIO()
    call_command("rotate_secret_key", stdout=told)
    assert "Encrypted 1 stored secret with the current SECRET_KEY." in told.getvalue()
    settings.SECRET_KEY_FALLBACKS = []
    client = log_in()
    assert client.post(PAGE, {"code": code_of(clock)}).status_code == 302


def test_the_company_s_logins_are_left_to_the_company(clock, settings):
    company = "identity.company_login.CompanyBackend"
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, company]
    settings.CATALOGUE = settings.CATALOGUE | {"second_factor": "staff"}
    client = Client()
    client.force_login(User.objects.get(), backend=company)
    assert is_in(client)
    client.force_login(User.objects.get())
    assert not is_in(client)


def test_sessions_of_before_are_asked_too(clock, settings):
    older, former = log_in(), log_in()
    session = older.session
    del session[second_factor.SESSION_KEY]
    session.save()
    settings.CATALOGUE = settings.CATALOGUE | {"second_factor": "staff"}
    assert not is_in(older), "from before second factors existed"
    assert not is_in(former), "from before the setting demanded one"


def test_other_sessions_are_asked_once_the_user_has_one(clock):
    """One may be of somebody who got hold of the password."""
    other = log_in()
    assert is_in(other)
    client, _ = enrol(clock)
    assert is_in(client) and not is_in(other)
    assert other.post(PAGE, {"code": code_of(clock)}).status_code == 302
    assert is_in(other)


def test_the_key_that_another_session_saw_is_not_the_one_that_is_set_up(clock):
    """Who has the password would otherwise also have all codes, once the user sets up a second factor."""
    thief, user = log_in(), log_in()
    seen = thief.get(PAGE).context["key"]  # type: ignore[index]
    shown = user.get(PAGE).context["key"]  # type: ignore[index]
    assert shown != seen
    assert user.get(PAGE).context["key"] == shown, "the page can be opened again"  # type: ignore[index]
    assert user.post(PAGE, {"code": code_of(clock)}).status_code == 200
    assert second_factor.key_of(SecondFactor.objects.get()) == shown
    thief.get(PAGE)
    assert second_factor.key_of(SecondFactor.objects.get()) == shown


def test_a_key_that_another_session_exchanges_meanwhile_is_not_confirmed(clock, monkeypatch):
    thief, user = log_in(), log_in()
    user.get(PAGE)
    code = code_of(clock)

    def look_meanwhile() -> float:
        thief.get(PAGE)
        return clock.now

    monkeypatch.setattr(clock, "time", look_meanwhile)
    assert user.post(PAGE, {"code": code}).status_code == 400
    assert SecondFactor.objects.get().confirmed_at is None
    assert not HistoryEntry.objects.filter(message="Set up a second factor.").exists()
