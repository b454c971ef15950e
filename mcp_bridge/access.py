"""What the caller behind an MCP request may do."""

import getpass
from dataclasses import dataclass

from catalogue.scopes import Scope
from executions.callers import Caller
from mcp_bridge.models import AccessToken


@dataclass(frozen=True, slots=True)
class Access:
    """Who calls, and with which scopes."""

    caller: Caller
    scopes: frozenset[str]
    token_id: int | None = None
    """None for callers that need no token."""

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes

    @classmethod
    def by_token(cls, token: AccessToken) -> "Access":
        return cls(token.caller, frozenset(token.scopes), token.pk)

    def is_still_granted(self) -> bool:
        """Asks the database, for what goes on after the request was let in."""
        return self.token_id is None or AccessToken.objects.usable().filter(pk=self.token_id).exists()

    @classmethod
    def of_local_user(cls) -> "Access":
        """Whoever can start our process on this machine can read the database anyway."""
        user = getpass.getuser()
        caller = Caller(key=f"local:{user}"[:100], name=f"{user} (local)")
        return cls(caller, frozenset({Scope.READ, Scope.RUN}))
