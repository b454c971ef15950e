"""Actions on many rows of a list, which agents notice, ask first."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from oauth2_provider.models import Application

from catalogue.models import ServerFeature, Source
from mcp_bridge.models import AccessToken, AllowedApplication
from mcp_bridge.tokens import create_token
from tests.admin.pages import answer_question, run_action, text_of, told
from tests.factories import make_feature, make_source

pytestmark = pytest.mark.django_db
MANY = 21


def make_features(**fields: Any) -> None:
    source = make_source()
    for number in range(MANY):
        make_feature(source, f"prompt-{number}", **fields)


def make_sources(**fields: Any) -> None:
    for _ in range(MANY):
        make_source(**fields)


def make_tokens() -> None:
    for number in range(MANY):
        create_token(name=f"agent {number}")


def make_applications() -> None:
    user = User.objects.get(username="admin")
    for number in range(MANY):
        application = Application.objects.create(name=f"Desk {number}", authorization_grant_type="x")
        AllowedApplication.objects.create(
            user=user, application=application, allowed_at=timezone.now(), scopes=[]
        )


ENABLED, DISABLED = {"enabled": True}, {"enabled": False}


@pytest.mark.parametrize(
    ("make", "model", "action", "asked", "remain"),
    [
        (
            lambda: make_sources(enabled=True),
            Source,
            "disable_selected",
            "Agents no longer see the tools of 21 sources.",
            ENABLED,
        ),
        (
            lambda: make_sources(enabled=False),
            Source,
            "enable_selected",
            "Agents see the enabled workflows of 21 sources again.",
            DISABLED,
        ),
        (
            lambda: make_features(enabled=True),
            ServerFeature,
            "disable_selected",
            "Clients no longer see 21 prompts and resources.",
            ENABLED,
        ),
        (
            lambda: make_features(enabled=False),
            ServerFeature,
            "enable_selected",
            "Clients that may use their sources can see 21 prompts and resources.",
            DISABLED,
        ),
        (
            make_tokens,
            AccessToken,
            "revoke_selected",
            "The clients of 21 tokens are locked out.",
            {"revoked_at": None},
        ),
        (
            make_applications,
            AllowedApplication,
            "revoke_selected",
            "The access of 21 applications ends immediately.",
            {"revoked_at": None},
        ),
    ],
)
def test_an_action_on_many_rows_is_done_only_after_the_page_said_how_many(
    admin_client, make, model, action, asked, remain
):
    make()
    rows = model._default_manager

    question = run_action(admin_client, action, rows.first(), everything=True)

    assert asked in text_of(question)
    assert rows.filter(**remain).count() == MANY
    assert ": 21." in told(answer_question(admin_client, question))
    assert not rows.filter(**remain).exists()
