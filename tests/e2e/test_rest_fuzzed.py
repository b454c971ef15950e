"""Generated requests to REST, right and wrong ones: no answer that the OpenAPI document does not know."""

import os
from collections.abc import Mapping
from pathlib import Path

import hypothesis
import pytest
import requests
import schemathesis
import yaml
from django.contrib.auth.models import User
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.modes import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks

from access.callers import Scope
from identity.tokens import create_token
from tests.admin.window import make_everything, make_http_tool
from tests.mcp_bridge.conftest import mcp_server as mcp_server  # noqa: PLC0414
from tests.mcp_bridge.conftest import source as source  # noqa: PLC0414

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

DOCUMENT = Path(__file__).resolve().parents[1] / "api" / "openapi.yaml"
TOKENS = {"no token": None, "a token that only reads": [Scope.READ], "a token with all scopes": list(Scope)}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
MOST = int(os.environ.get("FUZZED_REQUESTS", "5"))
"""Requests to each operation; without a token it is the same answer each time."""
ORDER = {"delete": 2, "get": 1}
"""What was written is read afterwards, and deleted last."""


@pytest.mark.parametrize("kind", TOKENS)
def test_every_answer_is_one_that_the_document_knows(kind, mcp_server, source, subtests):
    make_everything(User.objects.create(username="admin", is_staff=True, is_superuser=True))
    make_http_tool()
    scopes = TOKENS[kind]
    listed: dict[tuple[str, str], list[str]] = {}
    for operation in _operations():
        with subtests.test(operation.label):
            # The one before may have revoked every token that there was.
            caller = _session(create_token(name=operation.label, scopes=scopes)[1] if scopes else "")
            reader = _session(create_token(name=f"reader, {operation.label}", scopes=list(Scope))[1])
            names = _known_names(operation, reader, mcp_server.base_url, listed)
            _try(operation, names, caller, mcp_server.base_url, MOST if scopes else 3)
        if scopes and operation.method.lower() != "get":
            listed.clear()


def _session(token: str) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    return session


def _operations() -> list[APIOperation]:
    document = yaml.load(DOCUMENT.read_text(), yaml.CSafeLoader)
    # Without these, who calls is the test's to choose.
    del document["components"]["securitySchemes"]
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig())
    operations = [found.ok() for found in schema.get_all_operations()]
    return sorted(operations, key=lambda operation: ORDER.get(operation.method.lower(), 0))


def _known_names(
    operation: APIOperation, reader: requests.Session, base_url: str, known: dict[tuple[str, str], list[str]]
) -> dict[str, list[str]]:
    """What generated data would not hit upon: the names and ids of what there is, by parameter and field.
    `known`: what was listed since the last change, which this adds to."""

    def listed(place: str, name: str) -> list[str]:
        if (place, name) not in known:
            answer = reader.get(f"{base_url}{place}", timeout=20).json()
            rows = answer if isinstance(answer, list) else answer["results"]
            known[place, name] = [str(row.get(name, row.get("name"))) for row in rows]
        return known[place, name]

    names = {
        "tool": listed("/api/workflows/", "tool_name"),
        "source": listed("/api/sources/", "name"),
        "toolset": listed("/api/toolsets/", "slug"),
    }
    names["workflow"] = names["tool"]
    place, _, rest = operation.path.partition("{")
    if rest:
        parameter = rest.partition("}")[0]
        names[parameter] = listed(place, parameter)
    return {name: values for name, values in names.items() if values}


def _try(
    operation: APIOperation,
    names: Mapping[str, list[str]],
    caller: requests.Session,
    base_url: str,
    most: int,
) -> None:
    modes = [GenerationMode.POSITIVE, GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    cases = st.one_of([operation.as_strategy(mode) for mode in modes])
    known = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in names.items()})
    limits = hypothesis.settings(
        max_examples=most,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )

    @limits
    @hypothesis.given(case=cases, known=st.one_of(known, known, st.just({})))
    def answers_as_documented(case: schemathesis.Case, known: Mapping[str, str]) -> None:
        for place in (case.path_parameters, case.query, case.body):
            if isinstance(place, dict):
                place.update({name: known[name] for name in place.keys() & known.keys()})
        case.call_and_validate(base_url=base_url, session=caller, checks=CHECKS, timeout=60)

    answers_as_documented()
