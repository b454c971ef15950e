def split_list(text: str) -> list[str]:
    """The items between commas, without surrounding spaces and empty ones."""
    return [item for part in text.split(",") if (item := part.strip())]
