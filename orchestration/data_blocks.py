"""Text of others inside a prompt, where it cannot pass for what we say."""

import re
from typing import Literal

Block = Literal["tools", "instructions", "response", "format"]
LOOKS_LIKE_OURS = re.compile(r"<(?=[\s/\\]*(?:tools|instructions|response|format)\b)", re.IGNORECASE)
BROKEN = r"<\\"


def data_block(name: Block, text: str) -> str:
    r"""The text between `<name>` and `</name>`; where it holds such a mark itself, a backslash breaks it.

    Everything else stays as it is, since values are copied from there.
    """
    return f"<{name}>\n{LOOKS_LIKE_OURS.sub(BROKEN, text)}\n</{name}>"
