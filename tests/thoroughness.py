"""How much tests do beyond the first look: all where THOROUGH is set, as by `make check`."""

import os

THOROUGH = bool(os.environ.get("THOROUGH"))


def examples(most: int) -> int:
    """How many examples property tests try: otherwise a fifth."""
    return most if THOROUGH else max(most // 5, 10)
