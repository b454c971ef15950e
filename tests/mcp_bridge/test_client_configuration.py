"""What people paste into their client's configuration works as it is pasted."""

import json

from mcp_bridge.client_configuration import http_client_configuration, stdio_client_configuration


def test_the_http_configuration_names_the_endpoint_and_carries_the_token():
    server = json.loads(http_client_configuration("wfc_abc"))["mcpServers"]["workflow-catalogue"]
    assert server["url"].endswith("/mcp")
    assert server["headers"] == {"Authorization": "Bearer wfc_abc"}


def test_the_stdio_configuration_finds_the_data_of_the_running_product():
    """E8: a desktop client starts the command without the environment that the product was started with."""
    text = stdio_client_configuration(
        "/venv/python", "/app/manage.py", variables={"CATALOGUE_DATA_DIR": "/data"}
    )
    server = json.loads(text)["mcpServers"]["workflow-catalogue"]
    assert (server["command"], server["args"]) == ("/venv/python", ["/app/manage.py", "mcp_stdio"])
    assert server["env"] == {"CATALOGUE_DATA_DIR": "/data"}
    assert "env" not in stdio_client_configuration("p", "m", variables={})


def test_a_toolset_has_an_address_and_a_name_of_its_own():
    """E8: several can stand in one client's configuration."""
    http = json.loads(http_client_configuration("wfc_abc", toolset="finance"))["mcpServers"]
    assert http["workflow-catalogue-finance"]["url"].endswith("/mcp/finance")
    stdio = json.loads(stdio_client_configuration("p", "m", variables={}, toolset="finance"))["mcpServers"]
    assert stdio["workflow-catalogue-finance"]["args"] == ["m", "mcp_stdio", "--toolset", "finance"]
