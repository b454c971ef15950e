"""What a document calls security schemes, as the settings of sources that fulfil them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.refusals import NoTool

Settings = dict[str, str]
"""Of a source: `authentication` and what belongs to it, secrets apart."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A security scheme, and the settings of sources that fulfil it, the likeliest first."""

    name: str
    fulfilled_by: list[Settings]
    objection: str = ""
    """Why there are none."""

    def accepts(self, settings: Settings) -> bool:
        return any(_alike(wanted, settings) for wanted in self.fulfilled_by)


def scheme_of(document: Document, name: str) -> Scheme:
    components = document.value.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    if not isinstance(schemes, dict) or name not in schemes:
        return Scheme(name, [], "which the document does not describe")
    try:
        raw, _ = document.object_at(schemes[name], "/components/securitySchemes")
    except NoTool as refusal:
        return Scheme(name, [], f"which cannot be read: {refusal.reason.rstrip('.')}")
    fulfilled_by = list(_fulfilments(raw))
    objection = "" if fulfilled_by else f"which is {_kind(raw)}, and that is not supported"
    return Scheme(name, fulfilled_by, objection)


def _kind(raw: dict[str, Any]) -> str:
    told = [str(raw[key])[:40] for key in ("type", "in", "scheme") if isinstance(raw.get(key), str)]
    return " ".join(told) or "of no known type"


def _fulfilments(raw: dict[str, Any]) -> Iterator[Settings]:
    match str(raw.get("type")), str(raw.get("scheme", "")).lower(), raw.get("in"):
        case "apiKey", _, "header" | "query" as where if isinstance(name := raw.get("name"), str):
            yield {"authentication": "api_key", "api_key_in": str(where), "api_key_name": name}
            if where == "header" and name.lower() == "authorization":
                # What documents mean by a key in this header is nearly always "Bearer ...".
                yield {"authentication": "bearer"}
                yield {"authentication": "oauth_client_credentials"}
        case "http", "bearer", _:
            yield {"authentication": "bearer"}
            yield {"authentication": "oauth_client_credentials"}
        case "http", "basic", _:
            yield {"authentication": "basic"}
        case "oauth2", _, _:
            yield from _oauth(raw.get("flows"))
        case "openIdConnect", _, _:
            yield {"authentication": "bearer"}


def _oauth(flows: Any) -> Iterator[Settings]:
    """Whatever the flow, what is sent is a bearer token; only client credentials are got by the product."""
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if isinstance(flow, dict):
        url = flow.get("tokenUrl")
        # One relative to the document is for whoever imports it to complete.
        known = {"oauth_token_url": url} if isinstance(url, str) and "://" in url else {}
        yield {"authentication": "oauth_client_credentials"} | known
    yield {"authentication": "bearer"}


def _alike(wanted: Settings, settings: Settings) -> bool:
    """Where the token comes from is the source's own affair."""
    compared = {key: value for key, value in wanted.items() if key != "oauth_token_url"}
    if compared.get("api_key_in") == "header":
        same_name = compared.pop("api_key_name").lower() == settings.get("api_key_name", "").lower()
        return same_name and compared.items() <= settings.items()
    return compared.items() <= settings.items()
