"""What becomes of the tokens of a toolset that is to go."""

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from catalogue.models import Toolset
from mcp_bridge.models import AccessToken

NAMED_TOKENS = 10


class ToolsetInUse(Exception):
    """Tokens that are bound to the toolset would see nothing, or everything, without it."""

    def __init__(self, toolset: Toolset, names: list[str]) -> None:
        more = f" and {len(names) - NAMED_TOKENS} more" if len(names) > NAMED_TOKENS else ""
        super().__init__(
            f"Toolset {toolset.slug} is all that these tokens see: {', '.join(names[:NAMED_TOKENS])}{more}. "
            "Revoke them first, or switch the toolset off instead of deleting it."
        )


def tokens_bound_to(toolset: Toolset) -> list[str]:
    """The names of the tokens that keep it from being deleted: all that were not revoked."""
    bound = AccessToken.objects.filter(toolset=toolset, revoked_at=None)
    return list(bound.order_by("name").values_list("name", flat=True))


def delete_toolset(toolset: Toolset) -> None:
    """Raises ToolsetInUse. Revoked tokens, which are never deleted, do not keep it: they open nothing."""
    try:
        with transaction.atomic():
            AccessToken.objects.filter(toolset=toolset).exclude(revoked_at=None).update(toolset=None)
            toolset.delete()
    except (ProtectedError, IntegrityError):
        raise ToolsetInUse(toolset, tokens_bound_to(toolset)) from None
