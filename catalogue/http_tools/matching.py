"""Whether a declared tool is one of the API that a source stands for."""

from dataclasses import dataclass

from catalogue.http_tools.configs import SECRET_OF, authentication_of
from catalogue.http_tools.refusals import ToolFault
from catalogue.models import Source
from catalogue.secrets import CredentialsUnreadable
from connectors.http_tools.checks import Connection
from connectors.http_tools.tool import Authentication, Endpoint, ToolConfig

Identity = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedTool:
    """A tool with what it says of its API."""

    position: int
    """In the submission."""
    tool: ToolConfig
    connection: Connection

    @property
    def authentication(self) -> Authentication:
        return self.tool.api.authentication

    @property
    def says_who_we_are(self) -> bool:
        return "authentication" in self.tool.api.model_fields_set

    def fault(self, message: str, path: str = "") -> ToolFault:
        return ToolFault(position=self.position, path=path, message=message)

    def fault_of_secret(self, message: str) -> ToolFault:
        return self.fault(message, f"/api/authentication/{SECRET_OF[self.authentication.type]}")


def fits(source: Source, one: SubmittedTool) -> bool:
    """Whether it is below the source's base URL and authenticates alike."""
    return _is_below(source, one) and authenticates_alike(source, one)


def authenticates_alike(source: Source, one: SubmittedTool) -> bool:
    return identity(authentication_of(source.config)) == identity(one.authentication)


def identity(authentication: Authentication) -> Identity:
    """Who we are, without what proves it."""
    told = authentication.model_dump(by_alias=True, exclude={SECRET_OF.get(authentication.type, "")})
    if told.get("in") == "header":
        told["name"] = told["name"].lower()
    if "token_url" in told:
        told["token_url"] = told["token_url"].strip().rstrip("/")
    return tuple(sorted(told.items()))


def base_url_of(source: Source) -> str:
    return str(source.config.get("base_url", ""))


def secrets_of(source: Source) -> dict[str, str]:
    """Those that are stored and can be read."""
    try:
        return {name: secret for name, secret in source.credentials.items() if secret}
    except CredentialsUnreadable:
        return {}


def other_secrets(source: Source) -> str:
    """Why a tool cannot bring a secret of its own."""
    return (
        f"Source {source.name} of this API has another one, which its other tools use. Leave it out to use "
        'that, change it at the source itself, or name a new source: {"source": ..., "tools": [...]}, or '
        "`add_tools --source`."
    )


def _is_below(source: Source, one: SubmittedTool) -> bool:
    try:
        Endpoint.of(one.tool.api.endpoint).path_below(base_url_of(source))
    except ValueError:
        return False
    return True
