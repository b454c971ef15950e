"""How many tokens something costs a model's context: an estimate, as each model counts differently."""

CHARACTERS_PER_TOKEN = 4
"""Of English and JSON."""


def estimate_tokens(text: str) -> int:
    return tokens_for(len(text))


def tokens_for(characters: int) -> int:
    """Rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)
