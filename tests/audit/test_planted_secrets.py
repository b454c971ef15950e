"""A hunt: a secret of its own is planted wherever the product takes one, every door is driven, also into
errors, and then all that was written and answered is searched. None is found outside of its encrypted column.
"""

import base64
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from loguru import logger
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr
from pytest_django import Settings
from rest_framework.test import APIClient

from audit.sealing import seal
from catalogue.connections import secret_fields
from catalogue.curation import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import HistoryEntry, Source
from catalogue.sources import check_source
from config.monitoring import collect, forget_measures
from config.web_server import WithoutValues
from connectors.http_tools.tool import EXTRA_KEYS
from connectors.registry import connector_kinds
from executions.approval_notices import send_due
from executions.models import ApprovalNotice
from executions.starting import create_execution
from mcp_bridge import second_factor
from mcp_bridge.models import SecondFactor
from mcp_bridge.tokens import create_token
from orchestration.language_model import forget_dialects
from tests.api.clients import TokenClient, administrator
from tests.executions.steps import request_for
from tests.factories import make_workflow
from tests.mcp_bridge.conftest import McpServer, mcp_server  # noqa: F401 - a fixture
from tests.mcp_bridge.test_endpoint import modern
from tests.mcp_bridge.test_oauth import PASSWORD, Agent
from tests.processes import ROOT

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("catalogue.connections"),
    pytest.mark.e2e,
]

_numbers = count(1)
SECOND_FACTOR = "/admin/second-factor/"
PASSED_ON = "encrypted_"  # Columns that may have them


class Hunt:
    """What was planted, and all that came out."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []

    def plant(self, place: str) -> str:
        secret = f"Plant{next(_numbers):03d}x{os.urandom(9).hex()}"
        self.planted[place] = secret
        return secret

    def see(self, where: str, what: Any) -> None:
        content = b"".join(what.streaming_content) if getattr(what, "streaming", False) else what
        content = getattr(content, "content", content)
        self.seen.append(
            (where, content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content))
        )

    def found(self) -> set[tuple[str, str]]:
        """Where which secret stands, as it is or in base64."""
        whole = "\n".join(text for _, text in self.seen)
        out = [
            (place, spelling)
            for place, secret in self.planted.items()
            for spelling in spellings(secret)
            if spelling in whole
        ]
        return {(where, place) for place, spelling in out for where, text in self.seen if spelling in text}


@pytest.fixture
def hunt() -> Iterator[Hunt]:
    """All log lines are seen, the least severe too."""
    hunt = Hunt()
    sink = logger.add(
        lambda line: hunt.see("log", line), level=0, format="{message} {extra}\n{exception}", diagnose=False
    )

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hunt.see("log", self.format(record))

    root, handler = logging.getLogger(), Handler()
    root.addHandler(handler)
    yield hunt
    root.removeHandler(handler)
    logger.remove(sink)


def spellings(secret: str) -> set[str]:
    """As it is, and in base64 wherever in an encoded text it stands."""
    whole = (base64.b64encode(b"\0" * before + secret.encode()).decode().rstrip("=") for before in range(3))
    # The characters at either end depend on what is beside it.
    return {secret, *(encoded[4:-2] for encoded in whole)}


class Parrot(BaseHTTPRequestHandler):
    """An engine or model server that refuses everything, and repeats what it got in its error."""

    heard: ClassVar[list[str]] = []

    def answer(self) -> None:
        if self.path.startswith("/.well-known/"):
            self.describe()
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        said = f"{self.path} {dict(self.headers)} {body.decode('utf-8', 'replace')}"
        self.heard.append(said)
        content = json.dumps({"error": {"message": f"refused: {said}"}}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def describe(self) -> None:
        """As an authorization server does."""
        address = f"http://{self.headers['host']}"
        named = ("authorization", "token", "introspection", "userinfo")
        document = {f"{name}_endpoint": f"{address}/{name}" for name in named}
        content = json.dumps(document | {"issuer": address, "jwks_uri": f"{address}/keys"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the names of the base class

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def parrot() -> Iterator[str]:
    Parrot.heard.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Parrot) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def settings_for(kind: str, address: str) -> list[dict[str, Any]]:
    """Settings with which each secret of the kind is used."""
    token = {"oauth_token_url": f"{address}/token", "oauth_client_id": "client"}
    if kind == "http":
        return [
            {"base_url": address, "authentication": way}
            | (token if way.startswith("oauth") else {})
            | ({"username": "user"} if way == "basic" else {})
            for way in ("api_key", "bearer", "basic", "oauth_client_credentials")
        ] + [{"base_url": address, f"{key}_name": "X-Extra"} for key in EXTRA_KEYS]
    if kind == "mcp":
        return [{"url": f"{address}/mcp"}, {"url": f"{address}/mcp"} | token]
    if kind == "temporal":
        return [{"host_port": address.removeprefix("http://"), "connect_timeout": 1}]
    if kind == "http_job":
        return [{"base_url": address, "preset": "awx"}]
    return [{"base_url": address}]


def secrets_for(kind: str, hunt: Hunt) -> dict[str, str]:
    planted = {name: hunt.plant(f"{kind} {name}") for name in secret_fields(kind)}
    if "auth_string" in planted:
        planted["auth_string"] = f"user:{planted['auth_string']}"
    if "secret_environment" in planted:
        planted["secret_environment"] = f"KEY={planted['secret_environment']}"
    return planted


def drive_sources(hunt: Hunt, api: TokenClient, admin: Client, address: str) -> None:
    """Settings that are right, that are wrong, and secrets in the wrong place; by REST and by the admin."""
    for kind in connector_kinds():
        configs, page = settings_for(kind, address), f"{reverse('admin:catalogue_source_add')}?kind={kind}"
        for number, (secret, value) in enumerate(secrets_for(kind, hunt).items()):
            config, secrets = configs[number % len(configs)], {secret: value}
            body = {"name": f"{kind}-{number}", "kind": kind, "config": config, "credentials": secrets}
            hunt.see(f"source of {kind}", api.post("/api/sources/", body))
            wrong = {secret: f"{value}\n{value}ä"}
            hunt.see(f"wrong of {kind}", api.post("/api/sources/", body | {"credentials": wrong}))
            form = {
                "name": "not a name!",
                "kind": kind,
                "new_workflows": "hidden",
                "change_policy": "careful",
            }
            form |= {f"setting_{one}": given for one, given in (config | secrets).items()}
            hunt.see(f"form of {kind}", admin.post(page, form))
            hunt.see(f"misplaced of {kind}", api.post("/api/sources/", body | {"config": config | secrets}))
            hunt.see(f"list of {kind}", api.post("/api/sources/", body | {"credentials": [secrets]}))
            tried = {"config": config, "credentials": secrets}
            hunt.see(f"check of {kind}", api.post(f"/api/connectors/{kind}/check/", tried))
    drive_stored_sources(hunt, api, admin)


def drive_stored_sources(hunt: Hunt, api: TokenClient, admin: Client) -> None:
    for source in Source.objects.all():
        hunt.see("health", check_source(source).message)
        for address in ("", "refresh/", "check/"):
            method = api.post if address else api.get
            hunt.see(f"REST of a source: {address}", method(f"/api/sources/{source.name}/{address}"))
        for name in ("wrong secret of a webhook", "another"):
            headers = {"X-Webhook-Secret": hunt.plant(f"{name} at {source.name}")}
            delivered = Client().post(f"/hooks/{source.name}", {"id": 1}, "application/json", headers=headers)
            hunt.see("delivery", delivered)
        hunt.see("change", api.patch(f"/api/sources/{source.name}/", {"config": {"base_url": "x"}}))
        for page in ("change", "history", "delete"):
            hunt.see(f"page {page}", admin.get(reverse(f"admin:catalogue_source_{page}", args=[source.pk])))
    hunt.see("delete", api.delete(f"/api/sources/{Source.objects.earliest('pk').name}/"))
    for address in ("sources", "history", "discovery-runs", "audit", "catalogue/export", "audit/export"):
        hunt.see(address, api.get(f"/api/{address}/"))
    for name in ("catalogue_source", "catalogue_historyentry", "catalogue_discoveryrun", "audit_entry"):
        hunt.see(f"list {name}", admin.get(reverse(f"admin:{name}_changelist")))
    for entry in HistoryEntry.objects.all()[:3]:
        hunt.see("entry", admin.get(reverse("admin:catalogue_historyentry_change", args=[entry.pk])))


def drive_access(hunt: Hunt, api: TokenClient, server: McpServer) -> None:
    """Tokens and passwords, right and wrong ones, at each door."""
    hunt.planted["token of an administrator"] = api.text
    _, token = create_token(name="agent")
    hunt.planted["token of an agent"] = token
    wrong = hunt.plant("wrong token")
    workflow = make_workflow(name="report")
    call = modern("tools/call", name=workflow.tool_name, arguments={"a": 1})
    for text in (token, f"wfc_{wrong}", wrong):
        for body, headers in (modern("tools/list"), call, modern("tools/call", name=text)):
            known = text in str(body)
            answer = server.post(body, headers=headers, token=text)
            if not known:  # What a client sends as the name of a tool comes back to it
                hunt.see("MCP", answer.text)
        hunt.see("REST", APIClient().get("/api/sources/", HTTP_AUTHORIZATION=f"Bearer {text}"))
    password = hunt.plant("password")
    User.objects.create_superuser("ada", password=password)
    for name, given in (
        ("ada", hunt.plant("wrong password")),
        (hunt.plant("password as the name"), "x"),
        ("ada", password),
    ):
        answer = Client().post(reverse("admin:login"), {"username": name, "password": given})
        if name == "ada":  # The form shows the name that was entered, to who entered it
            hunt.see("sign-in", answer)
    signed_in = Client()
    signed_in.force_login(User.objects.get(username="ada"))
    new = {"old_password": password, "new_password1": hunt.plant("new password"), "new_password2": "another"}
    hunt.see("change of password", signed_in.post(reverse("admin:password_change"), new))
    user = {"username": "eve", "usable_password": "true", "password1": hunt.plant("their password")}
    hunt.see("new user", signed_in.post(reverse("admin:auth_user_add"), user | {"password2": "x"}))


def drive_logins(
    hunt: Hunt, api: TokenClient, server: McpServer, admin: Client, address: str, settings: Settings
) -> None:
    """Codes, tokens and secrets of OAuth, of the company's login and of second factors."""
    agent = Agent(server)
    User.objects.create_superuser("anna", password=PASSWORD)
    agent.connect("anna")
    hunt.planted |= {f"OAuth {name}": agent.tokens[name] for name in ("access_token", "refresh_token")}
    agent.tools()
    agent.refresh()
    agent.exchange(grant_type="refresh_token", refresh_token=hunt.planted["OAuth refresh_token"])
    agent.close()
    signed_in = Client()
    signed_in.force_login(User.objects.get(username="anna"))
    signed_in.get(SECOND_FACTOR)
    key = second_factor.key_of(SecondFactor.objects.get(user__username="anna"))
    totp = TOTP(base64.b32decode(key), 6, SHA1(), 30)
    page: Any = signed_in.post(SECOND_FACTOR, {"code": totp.generate(int(time.time())).decode()})
    hunt.planted |= {"seed of a second factor": key}
    hunt.planted |= {
        f"recovery code {number}": code for number, code in enumerate(page.context_data["codes"])
    }
    hunt.see("second factor", signed_in.get(SECOND_FACTOR))
    user = User.objects.get(username="anna")
    hunt.see("page of a user", admin.get(reverse("admin:auth_user_change", args=[user.pk])))
    settings.CATALOGUE = settings.CATALOGUE | {
        "login_issuer": address,
        "login_client_id": "catalogue",
        "login_client_secret": SecretStr(hunt.plant("secret of the company's login")),
        "oauth_issuer": address,
        "oauth_client_id": "catalogue",
        "oauth_client_secret": SecretStr(hunt.plant("secret of the resource server")),
    }
    settings.AUTHENTICATION_BACKENDS = [
        *settings.AUTHENTICATION_BACKENDS,
        "mcp_bridge.company_login.CompanyBackend",
    ]
    browser = Client()
    begun = browser.get(reverse("company-login"))
    state = parse_qs(urlsplit(begun["location"]).query)["state"][0]
    code = {"state": state, "code": hunt.plant("code of the company's login")}
    hunt.see("company login", browser.get(reverse("company-login-callback"), code))
    foreign = hunt.plant("token of another server")
    hunt.see("REST", APIClient().get("/api/sources/", HTTP_AUTHORIZATION=f"Bearer {foreign}"))


def drive_approvals(hunt: Hunt, api: TokenClient, admin: Client, address: str, settings: Settings) -> None:
    """Notices that are refused, by webhook and by mail."""
    settings.CATALOGUE = settings.CATALOGUE | {
        "approval_webhook_url": f"{address}/hook",
        "approval_webhook_secret": SecretStr(hunt.plant("secret of the webhook")),
    }
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "user", hunt.plant("password of the mail server")
    User.objects.filter(username="anna").update(email="anna@example.com", is_staff=True)
    override_workflow(make_workflow(name="pay", tool_name="pay"), approval_required=True)
    forget_catalogue()
    execution = create_execution(request_for("pay", {"amount": 7}))
    send_due(seconds=30)
    assert {notice.attempts for notice in ApprovalNotice.objects.all()} == {1}
    assert len(ApprovalNotice.objects.all()) == 2
    hunt.see("approval", api.get(f"/api/approvals/{execution.pk}/"))
    hunt.see("approval", admin.get(reverse("admin:executions_approval_change", args=[execution.pk])))


def drive_model(hunt: Hunt, api: TokenClient, address: str, settings: Settings) -> None:
    forget_dialects()
    settings.CATALOGUE = settings.CATALOGUE | {
        "openai_base_url": f"{address}/v1",
        "openai_api_key": SecretStr(hunt.plant("key of the model")),
        "openai_model": "m",
        "model_retries": 0,
    }
    hunt.see(
        "request in words",
        api.post("/workflow", {"user_instructions": "Make the report.", "tool_ids": ["report"]}),
    )
    hunt.see("list of requests", api.get("/api/workflow-requests/"))


def drive_references(hunt: Hunt, api: TokenClient, address: str, settings: Settings, folder: Path) -> None:
    settings.SECRETS_DIR = folder / "secrets"
    settings.SECRETS_DIR.mkdir()
    (settings.SECRETS_DIR / "key").write_text(hunt.plant("file"))
    (folder / "outside").write_text(hunt.plant("file outside"))
    settings.SECRET_VARIABLES = {"CATALOGUE_SECRET_KEY": hunt.plant("variable")}
    for reference in ("file:key", "env:CATALOGUE_SECRET_KEY", "file:../outside", "file:nothing", "env:HOME"):
        body = {"config": {"base_url": address}, "credentials": {"api_key": reference}}
        hunt.see("reference", api.post("/api/connectors/simplified/check/", body))
        name = f"refers-{reference[-3:]}".lower()
        hunt.see("source", api.post("/api/sources/", {"name": name, "kind": "simplified", **body}))


def drive_debug_pages(hunt: Hunt, admin: Client, settings: Settings) -> None:
    """CATALOGUE_DEBUG=true: the page of an error that nobody foresaw, with all that it tells."""
    settings.DEBUG = True
    settings.CELERY_BROKER_URL = SecretStr(f"amqp://user:{hunt.plant('broker')}@127.0.0.1:1//")
    admin.raise_request_exception = False
    secret = hunt.plant("form of a debug page")
    form = {
        "name": "x",
        "kind": "simplified",
        "setting_base_url": "http://127.0.0.1:9",
        "setting_api_key": secret,
    }
    form |= {"new_workflows": "hidden", "change_policy": "careful"}
    with pytest.MonkeyPatch.context() as patch:

        def fail(source: Source, **_: Any) -> None:
            credentials = source.credentials
            raise RuntimeError(f"not foreseen, with {len(credentials)} credentials")

        patch.setattr(Source, "full_clean", fail)
        answer = admin.post(f"{reverse('admin:catalogue_source_add')}?kind=simplified", form)
    assert answer.status_code == 500 and b"not foreseen" in answer.content
    assert WithoutValues.cleansed_substitute.encode() in answer.content
    hunt.see("debug page", answer)
    hunt.see("debug page of a 404", admin.get("/api/nowhere"))
    settings.DEBUG = False


def drive_commands(hunt: Hunt, folder: Path) -> None:
    out = StringIO()
    call_command("export_catalogue", stdout=out)
    call_command("export_audit", stdout=out)
    call_command("verify_audit", stdout=out)
    for command in ("list_tools", "refresh_sources"):
        try:
            call_command(command, stdout=out, stderr=out)
        except CommandError as error:
            out.write(str(error))
    hunt.see("commands", out.getvalue())
    address = f"postgres://user:{hunt.plant('database')}@127.0.0.1:1/x"
    broker = f"redis://:{hunt.plant('broker of a process')}@127.0.0.1:1/0"
    key = hunt.plant("SECRET_KEY")
    given = {
        "DATABASE_URL": address,
        "CELERY_BROKER_URL": broker,
        "SECRET_KEY": key * 2,
        "CATALOGUE_DEBUG": "1",
    }
    for variables, command in (
        (given, "migrate"),
        (given | {"DATABASE_URL": f"mysql://user:{hunt.plant('bad URL')}@x/y"}, "check"),
    ):
        data = {"CATALOGUE_DATA_DIR": str(folder / "data")}
        outcome = subprocess.run(
            [sys.executable, "manage.py", command],
            cwd=ROOT, env=os.environ | variables | data, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert outcome.returncode, command
        hunt.see(f"output of {command}", outcome.stdout + outcome.stderr)
    read_folder(hunt, folder / "data")


def read_database(hunt: Hunt) -> None:
    """Every column of every table but the encrypted ones; sessions in plain text."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            columns = [column[0] for column in cursor.description]
            for row in cursor.fetchall():
                for name, value in zip(columns, row, strict=True):
                    if not name.startswith(PASSED_ON):
                        hunt.see(f"{table}.{name}", value)
    for session in Session.objects.all():
        hunt.see("session", session.get_decoded())


def read_measurements(hunt: Hunt, spans: InMemorySpanExporter) -> None:
    forget_measures()
    hunt.see("metrics", collect())
    for span in spans.get_finished_spans():
        hunt.see("span", span.to_json())
    assert any(where == "span" for where, _ in hunt.seen)


def read_backup(hunt: Hunt, folder: Path) -> None:
    """As a file, deleted rows and free pages included."""
    if connection.vendor == "sqlite":
        call_command("backup", folder / "backup.tar", stdout=StringIO(), stderr=StringIO())
        read_folder(hunt, folder)
        assert any(where == "file backup.tar" for where, _ in hunt.seen)


def read_folder(hunt: Hunt, folder: Path) -> None:
    """In other processes: where one closes a file, it loses the locks by which SQLite has it open."""
    for path in folder.rglob("*"):
        if path.is_file():
            hunt.see(f"file {path.name}", subprocess.check_output(["cat", path]))


@pytest.mark.timeout(300)
def test_no_planted_secret_is_found_anywhere(
    hunt: Hunt,
    parrot: str,
    mcp_server: McpServer,  # noqa: F811
    settings: Settings,
    admin_client: Client,
    spans: InMemorySpanExporter,
    tmp_path: Path,
) -> None:
    """16.7, B8, E6"""
    before = set(Path(tempfile.gettempdir()).iterdir())
    api = administrator()
    drive_sources(hunt, api, admin_client, parrot)
    drive_access(hunt, api, mcp_server)
    drive_logins(hunt, api, mcp_server, admin_client, parrot, settings)
    drive_approvals(hunt, api, admin_client, parrot, settings)
    drive_model(hunt, api, parrot, settings)
    drive_references(hunt, api, parrot, settings, tmp_path)
    seal()
    drive_debug_pages(hunt, admin_client, settings)
    drive_commands(hunt, tmp_path)
    read_database(hunt)
    read_measurements(hunt, spans)
    (tmp_path / "backups").mkdir()
    read_backup(hunt, tmp_path / "backups")
    read_folder(hunt, Path(settings.DATA_DIR))
    for path in set(Path(tempfile.gettempdir()).iterdir()) - before:
        read_folder(hunt, path)

    sent = [
        place
        for place, secret in hunt.planted.items()
        if any(spelling in said for said in Parrot.heard for spelling in spellings(secret))
    ]
    expected = {
        "simplified api_key",
        "prefect api_key",
        "mcp bearer_token",
        "key of the model",
        "file",
        "variable",
        "secret of the company's login",
        "code of the company's login",
        "secret of the resource server",
        "token of another server",
    }
    assert expected <= set(sent), "these were used, so that they could have been repeated"
    assert len(hunt.planted) > 25 and len(hunt.seen) > 300
    assert hunt.found() == set()


def test_the_hunt_finds_what_is_there():
    hunt = Hunt()
    hunt.see("somewhere", f"Basic {base64.b64encode(hunt.plant('here').encode()).decode()}".encode())
    basic = base64.b64encode(f"client:{hunt.plant('with a name')}".encode()).decode()
    hunt.see("header", {"authorization": f"Basic {basic}"})
    hunt.see("nowhere", "nothing")
    assert hunt.found() == {("somewhere", "here"), ("header", "with a name")}
