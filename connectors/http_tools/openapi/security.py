"""How an API authenticates requests; a source can do so in one way only."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from connectors.http_tools.openapi.document import Document, NoTool, quoted

Settings = dict[str, str]  # A source's `authentication` and its settings without secrets
METHODS = ("get", "put", "post", "delete", "patch", "head")
SECRETS = {
    "token": "bearer",
    "password": "basic",
    "api_key": "api_key",
    "oauth_client_secret": "oauth_client_credentials",
}
NAMES = {
    "none": "no authentication",
    "api_key": "an API key",
    "bearer": "a bearer token",
    "basic": "a user name and a password",
    "oauth_client_credentials": "OAuth client credentials",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A security scheme, and settings that fulfil it, the likeliest first."""

    name: str
    fulfilled_by: list[Settings]
    objection: str = ""

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
    words = [str(raw[key])[:40] for key in ("type", "in", "scheme") if isinstance(raw.get(key), str)]
    kind = " ".join(words) or "of no known type"
    objection = "" if fulfilled_by else f"which is {kind}, and that is not supported"
    return Scheme(name, fulfilled_by, objection)


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
    """Every flow ends in a bearer token; the product requests one by client credentials only."""
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if isinstance(flow, dict):
        url = flow.get("tokenUrl")
        # A relative one has to be completed in the source's settings.
        known = {"oauth_token_url": url} if isinstance(url, str) and "://" in url else {}
        yield {"authentication": "oauth_client_credentials"} | known
    yield {"authentication": "bearer"}


def _alike(wanted: Settings, settings: Settings) -> bool:
    """Token URLs may differ."""
    compared = {key: value for key, value in wanted.items() if key != "oauth_token_url"}
    if compared.get("api_key_in") == "header":
        same_name = compared.pop("api_key_name").lower() == settings.get("api_key_name", "").lower()
        return same_name and compared.items() <= settings.items()
    return compared.items() <= settings.items()


def settings_for(document: Document, secrets: frozenset[str]) -> Settings:
    """As the given secrets require, else as most operations do."""
    wanted: Counter[tuple[tuple[str, str], ...]] = Counter()
    for alternatives in _all_requirements(document):
        for position, settings in enumerate(_choices(document, alternatives)):
            wanted[tuple(sorted(settings.items()))] += 1 if position else 2
    types = {SECRETS[name] for name in secrets & SECRETS.keys()}
    ranked = [dict(settings) for settings, _ in wanted.most_common()]
    if types:
        fitting = [settings for settings in ranked if settings["authentication"] in types]
        return fitting[0] if fitting else {"authentication": min(types)}
    return ranked[0] if ranked else {"authentication": "none"}


def is_anonymous(document: Document, operation: dict[str, Any], pointer: str, settings: Settings) -> bool:
    """Whether the operation is called without the source's credentials. True if the document requires none,
    or allows none besides credentials that the source lacks. Without any statement of the document they are
    sent. Raises NoTool if the source has nothing that the operation accepts."""
    own, usual = "security" in operation, document.value.get("security")
    where = f"{pointer}/security" if own else "/security"
    requirements = operation["security"] if own else usual
    if not isinstance(requirements, list):
        return False
    if not requirements:
        # An empty list revokes the document's requirement; many write one even if there is none.
        return own and bool(usual)
    wanted = [requirement for requirement in requirements if requirement != {}]
    objections = []
    for requirement in wanted:
        objection = _objection(document, requirement, settings)
        if not objection:
            return False
        objections.append(objection)
    if {} in requirements:
        return True
    raise NoTool(f"It wants {' or '.join(dict.fromkeys(objections))}.", where)


def key_place(settings: Settings) -> tuple[str, str] | None:
    """`query` or `header` and the API key's name, in lower case for headers."""
    if settings["authentication"] != "api_key":
        return None
    where, name = settings["api_key_in"], settings["api_key_name"]
    return where, name.lower() if where == "header" else name


def _objection(document: Document, requirement: Any, settings: Settings) -> str:
    if not isinstance(requirement, dict):
        return "something that is no security requirement"
    schemes = [scheme_of(document, name) for name in requirement]
    if len(schemes) > 1:
        together = " and ".join(quoted(scheme.name) for scheme in schemes)
        return f"{together} together, and a source authenticates in one way"
    scheme = schemes[0]
    if scheme.objection:
        return f"{quoted(scheme.name)}, {scheme.objection}"
    if scheme.accepts(settings):
        return ""
    kinds = " or ".join(dict.fromkeys(NAMES[one["authentication"]] for one in scheme.fulfilled_by))
    place = f" in {settings['api_key_name']}" if "api_key_name" in settings else ""
    present = NAMES[settings["authentication"]] + place
    return f"{quoted(scheme.name)} ({kinds}), and the source has {present}"


def _all_requirements(document: Document) -> Iterator[list[Any]]:
    """Each operation's requirements; unreadable ones are reported later."""
    usual = document.value.get("security")
    for item in _values(document.value.get("paths")):
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                said = operation.get("security", usual)
                yield said if isinstance(said, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _choices(document: Document, alternatives: list[Any]) -> Iterator[Settings]:
    for requirement in alternatives:
        if isinstance(requirement, dict) and len(requirement) == 1:
            yield from scheme_of(document, next(iter(requirement))).fulfilled_by[:1]
