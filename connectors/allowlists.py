"""What the operator of this installation allows; the settings of a source cannot widen it."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from connectors.errors import Misconfigured
from connectors.network.policy import AddressPolicy, AllowedHost, AllowedHosts


class StdioCommand(BaseModel):
    """A program that sources may start, to exchange messages over its standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: list[str] = Field(min_length=1)
    """The program and its arguments; no shell interprets them."""
    more_arguments: bool = False
    """Sources may add arguments of their own."""
    environment: frozenset[str] = frozenset()
    """The names of the environment variables that sources may set."""
    directory: str = "/"
    """Where it runs."""


_stdio_commands: dict[str, StdioCommand] = {}
_http_tool_hosts: list[AllowedHost] = []


def allow_stdio_commands(commands: Mapping[str, StdioCommand]) -> None:
    """Replace the commands that are allowed in this process."""
    _stdio_commands.clear()
    _stdio_commands.update(commands)


def allowed_stdio_command(name: str) -> StdioCommand:
    """The command of this name. Raises Misconfigured, saying what an operator has to do."""
    if (command := _stdio_commands.get(name)) is not None:
        return command
    known = ", ".join(sorted(_stdio_commands)) or "none so far"
    raise Misconfigured(
        f"The command {name!r} is not allowed here. An operator can allow it in the environment variable "
        f"CATALOGUE_STDIO_COMMANDS and restart; allowed are: {known}."
    )


def allow_http_tool_hosts(text: str) -> None:
    """Replace the hosts that HTTP tools may reach though they are not public.

    Raises ValueError with a sentence that names the entry that is wrong.
    """
    _http_tool_hosts[:] = AllowedHosts.parse(text).entries


def http_tool_addresses() -> AddressPolicy:
    """The policy of HTTP tools, by the current allowlist."""
    return AddressPolicy(
        public_only=True,
        opened=AllowedHosts(tuple(_http_tool_hosts)),
        advice="An operator can allow it in the environment variable CATALOGUE_HTTP_TOOL_HOSTS and restart.",
    )
