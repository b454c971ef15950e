"""What the caller behind an MCP request may do."""

import getpass
from collections.abc import Collection
from dataclasses import dataclass, replace

from catalogue.scopes import Scope
from executions.callers import Caller
from mcp_bridge.models import AccessToken


class OtherToolset(Exception):
    """The token is bound to a toolset, and it is not this one."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who calls, and with which scopes."""

    caller: Caller
    scopes: frozenset[str]
    token_id: int | None = None
    """None for callers that need no token."""
    inline_wait_seconds: int | None = None
    """What the token says of its client's patience; None: what the toolset or the product says."""
    learned_wait_seconds: int | None = None
    """Where the token says nothing: what the calls that its clients gave up have taught."""

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def toolset(self) -> str | None:
        """The slug of the toolset that the caller comes through; None: everything that is exposed."""
        return self.caller.toolset

    @classmethod
    def by_token(cls, token: AccessToken, *, toolset: str | None = None) -> "Access":
        """`toolset`: that of the address that was asked. Raises OtherToolset where the token has another."""
        caller = token.caller
        if toolset is not None and caller.toolset not in (None, toolset):
            raise OtherToolset
        if toolset is not None:
            caller = replace(caller, toolset=toolset)
        return cls(caller, token.granted, token.pk, token.inline_wait_seconds, token.learned_wait_seconds)

    def is_still_granted(self) -> bool:
        """Asks the database, for what goes on after the request was let in."""
        return self.token_id is None or bool(granted_tokens({self.token_id}))

    @classmethod
    def of_local_user(cls, *, toolset: str | None = None) -> "Access":
        """Whoever can start our process on this machine can read the database anyway."""
        user = getpass.getuser()
        caller = Caller(key=f"local:{user}"[:100], name=f"{user} (local)", toolset=toolset)
        return cls(caller, frozenset({Scope.READ, Scope.RUN}))


def granted_tokens(keys: Collection[int]) -> set[int]:
    """Those of them that are neither revoked nor expired."""
    return set(AccessToken.objects.usable().filter(pk__in=keys).values_list("pk", flat=True))
