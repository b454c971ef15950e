"""The setting that opens addresses to HTTP tools."""

from django.apps import apps

from connectors.network.policy import http_tool_addresses
from tests.connectors.http_tool_hosts import http_tool_hosts


def test_what_the_operator_allows_is_open_from_the_start(settings):
    """C9, B4: CATALOGUE_HTTP_TOOL_HOSTS reaches the one HTTP client."""
    settings.CATALOGUE = settings.CATALOGUE | {"http_tool_hosts": "10.1.0.0/16"}
    with http_tool_hosts(""):
        assert http_tool_addresses().objection("10.1.2.3") == "a private address"
        apps.get_app_config("catalogue").ready()
        assert http_tool_addresses().objection("10.1.2.3") == ""
        assert http_tool_addresses().objection("10.2.2.3") == "a private address"
