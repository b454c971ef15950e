"""The operator's allowlists, which the settings of a source cannot widen."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from connectors.errors import Misconfigured
from connectors.network.policy import AddressPolicy, AllowedHost, AllowedHosts

_http_tool_hosts: list[AllowedHost] = []


class StdioCommand(BaseModel):
    """A program that sources may start and talk to over its standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: list[str] = Field(min_length=1)
    more_arguments: bool = False
    environment: frozenset[str] = frozenset()
    directory: str = "/"


_stdio_commands: dict[str, StdioCommand] = {}


def allow_stdio_commands(commands: Mapping[str, StdioCommand]) -> None:
    _stdio_commands.clear()
    _stdio_commands.update(commands)


def allowed_stdio_command(name: str) -> StdioCommand:
    """Raises Misconfigured with the operator's next step."""
    if (command := _stdio_commands.get(name)) is not None:
        return command
    known = ", ".join(sorted(_stdio_commands)) or "none so far"
    raise Misconfigured(
        f"The command {name!r} is not allowed here. An operator can allow it in the environment variable "
        f"CATALOGUE_STDIO_COMMANDS and restart; allowed are: {known}."
    )


def allow_http_tool_hosts(text: str) -> None:
    """Replace the private hosts that HTTP tools may reach. Raises ValueError naming the bad entry."""
    _http_tool_hosts[:] = AllowedHosts.parse(text).entries


def http_tool_addresses() -> AddressPolicy:
    return AddressPolicy(
        public_only=True,
        opened=AllowedHosts(tuple(_http_tool_hosts)),
        advice="An operator can allow it in the environment variable CATALOGUE_HTTP_TOOL_HOSTS and restart.",
    )
