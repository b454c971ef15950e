"""How many examples property tests try: all where THOROUGH is set, as by `make check`, else a fifth."""

import os


def examples(most: int) -> int:
    return most if os.environ.get("THOROUGH") else max(most // 5, 10)
