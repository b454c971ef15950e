"""HTTP tools as somebody submits them, with as few words as possible."""

from typing import Any

from connectors.http_tools.tool import ToolConfig

API = "https://api.example.com"
TOKEN = "example-token-0123456789"
BEARER = {"type": "bearer", "token": TOKEN}


def declared(
    name: str = "get_order",
    *,
    endpoint: str = f"{API}/v1/orders/{{order_id}}",
    method: str = "GET",
    api: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A ToolConfig as JSON; the arguments are those of the path unless the fields say otherwise."""
    names = [part.partition("}")[0] for part in endpoint.split("{")[1:]]
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in names},
        "required": names,
    }
    return {
        "name": name,
        "description": f"What {name} does.",
        "api": {"endpoint": endpoint, "method": method} | (api or {}),
        "input_schema": schema,
    } | fields


def tool(name: str = "get_order", **fields: Any) -> ToolConfig:
    return ToolConfig.model_validate(declared(name, **fields))
