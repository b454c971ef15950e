"""The last stage: the response in words, as the person who asked wants them (C6)."""

from typing import Any

from orchestration.asked import Asked
from orchestration.formatting import format_response
from orchestration.links import remove_foreign_addresses
from orchestration.spending import Spending


async def put_into_words(
    raw_response: dict[str, Any], asked: Asked, *, spending: Spending
) -> tuple[str, list[str]]:
    """The text, and what there is to warn of. Raises StageFailed."""
    reply = await format_response(
        raw_response,
        instructions=asked.user_instructions,
        format_instructions=asked.response_format_instructions,
        ask=spending.ask,
    )
    given = (raw_response, asked.user_instructions, asked.response_format_instructions)
    text, removed = remove_foreign_addresses(reply.text, given=given)
    return text, [_warning(removed)] if removed else []


def _warning(removed: int) -> str:
    what = "An address was" if removed == 1 else f"{removed} addresses were"
    return f"{what} taken out of formatted_response: the model wrote what the response does not have."
