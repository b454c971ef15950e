"""Addresses and forms of the desk with values that nobody's browser sends."""

from urllib.parse import quote

import pytest
from django.contrib.auth.models import User

from tests.admin.window import make_everything

pytestmark = [pytest.mark.django_db, pytest.mark.databases("catalogue.long_lists")]
HOSTILE = (
    "9" * 23, "-1", "\x00", "'", '"open', "[]", '{"a":', "[0,1,2,3]", f'[0,"a","b",{"9" * 20}]',
    f'[{"9" * 20},"a","b",1]', "name:" + "," * 900, "\ud7ff\U0001f600", "<script>", "%", "a" * 5_000, "(?=x)",
    "name:[a-", "is:", "..", "7d.zz",
)  # fmt: skip
ADDRESSES = {
    "catalogue/workflow/": (
        "q",
        "tag",
        "is",
        "not-is",
        "source__id__exact",
        "visibility",
        "inbox",
        "toolset",
    ),
    "catalogue/review/": ("at", "source", "kind", "only", "tag", "decision"),
    "catalogue/review/candidate/": ("place", "now", "source"),
    "catalogue/workflow/1/change/": ("_changelist_filters",),
    "executions/execution/": ("cause", "q"),
    "executions/execution/failures/": ("period", "tool", "source", "caller", "cause"),
    "executions/execution/run/1/": ("again",),
    "mcp_bridge/accesstoken/reach/": ("by", "q", "caller", "tool", "page"),
    "search/": ("s",),
}
FORMS = {
    "catalogue/workflow/": ("chosen", "_selected_action", "action", "asked"),
    "catalogue/workflow/1/row/": ("tool_name", "tags_override", "_shown"),
    "catalogue/workflow/1/preview/": ("tool_name", "approval_rules", "cache_seconds", "argument_overrides"),
    "catalogue/workflow/1/switch/": ("seen", "enabled"),
    "catalogue/workflow/1/toolsets/": ("toolset",),
    "catalogue/review/decide/": ("place", "now", "key", "seen", "flags"),
    "catalogue/review/rename/": ("place", "now", "key", "tool_name"),
    "catalogue/review/toolset/": ("place", "key", "toolset"),
    "catalogue/review/undo/": ("place", "now"),
    "catalogue/review/accept/": ("workflows", "offer-1"),
    "catalogue/toolset/publish/": ("seen", "toolset", "slug", "ticked", "connect", "expires_at"),
    "catalogue/toolset/publish/preview/": ("seen", "toolset", "ticked"),
    "executions/execution/run/1/": ("change", "mode", "json", "key"),
}


@pytest.mark.parametrize("page", ADDRESSES)
def test_no_value_of_an_address_makes_a_page_fail(admin_client, page):
    make_everything(User.objects.get())
    for name in ADDRESSES[page]:
        for value in HOSTILE:
            answer = admin_client.get(f"/admin/{page}?{name}={quote(value)}")
            assert answer.status_code < 500, (name, value[:30])


@pytest.mark.parametrize("page", FORMS)
def test_no_value_of_a_form_makes_a_page_fail(admin_client, page):
    make_everything(User.objects.get())
    for name in FORMS[page]:
        for value in HOSTILE:
            for headers in ({}, {"HX-Request": "true"}):
                sent = {"action": "publish_selected", name: value}
                answer = admin_client.post(f"/admin/{page}", sent, headers=headers)
                assert answer.status_code < 500, (name, value[:30])
