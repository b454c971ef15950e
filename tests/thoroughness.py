"""How much tests do beyond the first look: all where THOROUGH is set, as by `make check`."""

import os
from collections import defaultdict

import pytest

THOROUGH = bool(os.environ.get("THOROUGH"))
QUICK = "not engines and not e2e"
"""What `make test` gives for `-m`."""
MAX_VARIANTS = 5
"""Of a test that the quick run tries."""


def examples(most: int) -> int:
    """How many examples property tests try: otherwise a fifth."""
    return most if THOROUGH else max(most // 5, 10)


def leave_out_variants(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a few variants of each test, evenly spread, unless somebody chooses tests by path or name."""
    is_chosen = config.option.keyword or config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if THOROUGH or is_chosen or config.option.markexpr != QUICK:
        return
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, variants in tests.items():
        # Of the pages that readers copy from, each is a subject of its own.
        if len(variants) > MAX_VARIANTS and not name.startswith("tests/docs/"):
            step = (len(variants) - 1) / (MAX_VARIANTS - 1)
            left_out.update({*variants} - {variants[round(step * number)] for number in range(MAX_VARIANTS)})
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
