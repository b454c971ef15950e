"""Every endpoint of the REST API, asked by everyone; and the commands and the document of the same table."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import get_commands, load_command_class
from django.db import transaction
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from audit.models import Entry
from catalogue.models import DiscoveryRun, HistoryEntry, ServerFeature, WorkflowFilter
from executions.models import Approval, Execution, StandingApproval
from identity.models import AccessToken, AllowedApplication
from orchestration.models import WorkflowRequest
from tests import access_matrix
from tests.access_matrix import COLUMNS, NO, OWN, YES, Rows
from tests.admin.window import make_everything, make_http_tool

NAMES = {"name": "good", "source": "good", "kind": "simplified", "id": "get_order", "slug": "finance"}
NAMES |= {"tool_name": "plain", "workflow": "plain"}
MODELS = {
    "approvals": Approval, "audit": Entry, "discovery-runs": DiscoveryRun, "executions": Execution,
    "filters": WorkflowFilter, "applications": AllowedApplication, "standing-approvals": StandingApproval,
    "history": HistoryEntry, "server-features": ServerFeature, "tokens": AccessToken,
    "workflow-requests": WorkflowRequest
}  # fmt: skip
ON_ENGINES = ("/check", "/refresh", "/cancel", "/query", "/signal")
"""Asked of what does not exist: the engine is not to be asked."""
NOTHING = "00000000-0000-0000-0000-000000000000"
SIGN_IN = "/oauth/sign-in"
ROOM_OF_COMMANDS = ("catalogue", "executions", "identity", "mcp_bridge", "orchestration", "config")


def endpoints() -> Iterator[tuple[str, str]]:
    for address, pattern in _patterns(get_resolver().url_patterns, ""):
        if address.startswith("/admin/"):
            continue
        verbs = getattr(pattern.callback, "actions", None) or _verbs_of(address)
        # REST framework adds `head` at the first request.
        for verb in [verb for verb in verbs if verb != "head"]:
            yield address, verb.upper()


def _verbs_of(address: str) -> list[str]:
    """Of a view that does not say: those that are not refused as such."""
    probe = APIClient(raise_request_exception=False)
    probe.force_login(User.objects.get(username="admin"))
    answers = {verb: probe.generic(verb.upper(), filled_in(address)).status_code for verb in ("get", "post")}
    return [verb for verb, status in answers.items() if status != 405]


def _patterns(entries: Any, before: str) -> Iterator[tuple[str, URLPattern]]:
    for entry in entries:
        written = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _patterns(entry.url_patterns, written)
        else:
            yield _as_address(written), entry


def _as_address(pattern: str) -> str:
    """`/api/sources/{name}/runs/` of a regular expression or a path."""
    named = re.sub(r"\(\?P<(\w+)>[^)]*\)|<\w+:(\w+)>", lambda found: f"{{{found[1] or found[2]}}}", pattern)
    plain = named.replace("(?:api|tools|workflow)(/|$)", "api/nowhere").replace("\\Z", "")
    return "/" + plain.replace("^", "").replace("$", "").replace("/?", "/").lstrip("/")


def filled_in(address: str) -> str:
    def fill(match: re.Match[str]) -> str:
        if address.rstrip("/").endswith(ON_ENGINES):
            return NOTHING
        if match[1] not in ("pk", "key"):
            return NAMES[match[1]]
        model = MODELS[address.split("/")[2]]
        rows = model._default_manager.all()
        if model is HistoryEntry:
            rows = rows.filter(model="catalogue.workflow")
        if model is Execution:
            rows = rows.filter(state="completed")
        return str(rows.order_by("pk").values_list("pk", flat=True)[0])

    return re.sub(r"\{(\w+)\}", fill, address)


@pytest.mark.django_db
def test_every_endpoint_answers_each_caller_as_the_table_says():
    make_everything(User.objects.create(username="admin", is_superuser=True, is_staff=True))
    make_http_tool()
    clients = {column: APIClient(raise_request_exception=False) for column in COLUMNS}
    for column, user in access_matrix.make_people().items():
        clients[column].force_login(user)
    for column, text in access_matrix.make_tokens().items():
        clients[column].credentials(HTTP_AUTHORIZATION=f"Bearer {text}")

    def call(endpoint: str, verb: str, caller: str) -> str:
        address = filled_in(endpoint)
        with transaction.atomic():
            response = clients[caller].generic(verb, address, "{}", content_type="application/json")
            transaction.set_rollback(True)
        assert response.status_code < 500, (verb, address, caller, response.content)
        if response.status_code in (401, 403) or response.headers.get("Location", "").startswith(SIGN_IN):
            return NO
        return OWN if response.status_code == 404 and "{" in endpoint and NOTHING not in address else YES

    observed = access_matrix.observe(endpoints(), COLUMNS, call)
    limited = [row for row, cells in observed.items() if OWN in (cells["Owner"], cells["catalogue:admin"])]
    assert limited == [("/oauth/applications/{key}/revoke", "POST")], "consents are their user's own"
    access_matrix.check("REST", observed)


def test_every_command_is_in_the_table():
    """Whoever reaches the shell of the machine has everything anyway: no role applies."""
    names = [name for name, app in get_commands().items() if app in ROOM_OF_COMMANDS]
    observed: Rows = {}
    for name in names:
        assert load_command_class(get_commands()[name], name).help, name
        observed[f"manage.py {name}", ""] = dict.fromkeys(COLUMNS, "-")
    access_matrix.check("command", observed)


def test_the_document_shows_the_tables():
    if access_matrix.is_to_write():
        access_matrix.DOCUMENT.write_text(
            access_matrix.document_with_tables(access_matrix.DOCUMENT.read_text())
        )
    text = access_matrix.DOCUMENT.read_text()
    assert text == access_matrix.document_with_tables(text), "run with ACCESS_MATRIX=write"
