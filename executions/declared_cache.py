"""What a file of declared workflows says of the result cache as a whole, which is one for all sources."""

import math
from typing import Any

from django.core.exceptions import ValidationError

from catalogue import declared_workflows
from connectors.temporal.declarations import CacheBlock
from executions.models import CachePolicy

WHERE = "an administrator changes it under Result cache"


def take_cache_settings(block: CacheBlock, *, apply: bool) -> list[str]:
    """Set what nobody has changed yet; of the rest, tell what differs. Returns what there is to tell."""
    policy, notes, wanted = CachePolicy.current(), [], _wanted(block)
    for name, value in wanted.items():
        if (note := _settle(policy, name, value)) is not None:
            notes.append(note)
    if apply and notes:
        policy.save()
    if block.enabled and not policy.enabled:
        notes.append(f"The result cache is switched off for all workflows; {WHERE}.")
    if block.database_path is not None:
        notes.append("cache.databasePath has no effect: results are kept in the product's own database.")
    return notes


def _wanted(block: CacheBlock) -> dict[str, tuple[str, int]]:
    """By field, the file's key and the value."""
    wanted = {}
    if block.max_cache_size is not None:
        wanted["max_bytes"] = ("maxCacheSize", block.max_cache_size)
    if block.cleanup_interval is not None:
        wanted["cleanup_seconds"] = ("cleanupInterval", math.ceil(block.cleanup_interval))
    return wanted


def _settle(policy: CachePolicy, name: str, wanted: tuple[str, int]) -> str | None:
    key, value = wanted
    field: Any = CachePolicy._meta.get_field(name)
    unit, present = ("bytes" if name == "max_bytes" else "s"), getattr(policy, name)
    if value == present:
        return None
    if present != field.default:
        return f"cache.{key} is {value:,} {unit}, but {present:,} {unit} were set here, which hold; {WHERE}."
    try:
        field.clean(value, policy)
    except ValidationError as error:
        return f"cache.{key} is not taken over: {' '.join(error.messages)}"
    setattr(policy, name, value)
    return f"Result cache, {field.verbose_name}: {value:,} {unit} instead of {present:,} {unit}."


declared_workflows.cache_takers.append(take_cache_settings)
