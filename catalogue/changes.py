"""What becomes of workflows that are declared here, told before and after in the same words."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from catalogue.models import Source

if TYPE_CHECKING:
    # It tells the history of these changes.
    from catalogue.reconciliation import Listing


class Change(StrEnum):
    """What becomes of one workflow."""

    ADDED = "added"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    RETURNED = "returned"
    """It was missing, and is there again."""
    REMOVED = "removed"
    """From the list; what ran stays on record."""
    KEPT = "kept"
    """As an earlier declaration has it; this one does not touch it."""


def tell_counts(count: Callable[[Change], int]) -> str:
    """`120 added, 3 removed`; empty where nothing is counted."""
    return ", ".join(f"{number} {change}" for change in Change if (number := count(change)))


def foresee_changes(source: Source | None, listing: "Listing") -> dict[str, Change]:
    """By the engine's ids: of what is listed, in its order, then of what would be missing as a whole listing.

    None: a source that is new.
    """
    rows = source.workflows.values_list("upstream_id", "content_hash", "missing_since") if source else ()
    known = {upstream_id: (content_hash, missing) for upstream_id, content_hash, missing in rows}
    changes = {}
    for upstream_id, layer in listing.layers.items():
        content_hash, missing = known.pop(upstream_id, (None, None))
        if content_hash is None:
            changes[upstream_id] = Change.ADDED
        elif missing is not None:
            changes[upstream_id] = Change.RETURNED
        else:
            same = content_hash == layer["content_hash"]
            changes[upstream_id] = Change.UNCHANGED if same else Change.UPDATED
    gone = sorted(upstream_id for upstream_id, (_, missing) in known.items() if missing is None)
    return changes | dict.fromkeys(gone, Change.REMOVED)
