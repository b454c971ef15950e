"""Tokens, addresses and budgets on the admin's first page."""

from django.urls import reverse

from catalogue.models import Toolset
from executions.dashboard import Need, Step, address, addresses, further_needs, further_steps
from mcp_bridge.admin.toolsets import over_budget
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import resource_url


def _make_a_token() -> Step:
    return Step(
        title="Make a token for a client",
        done=AccessToken.objects.exists(),
        url=reverse("admin:mcp_bridge_accesstoken_add"),
        permission="mcp_bridge.add_accesstoken",
    )


def _toolsets_over_budget() -> Need:
    return Need(
        number=len(over_budget(Toolset.objects.all())),
        words="Toolsets over their token budget",
        url=address("admin:catalogue_toolset_changelist", budget="over"),
    )


further_steps.append(_make_a_token)
further_needs["catalogue.view_toolset"] = (_toolsets_over_budget,)
addresses.append(resource_url)
