"""A request in words, from its tools to its answer."""

import asyncio

from catalogue.database import run_in_database
from executions.advancing import begin
from orchestration.answers import read_answer
from orchestration.asked import Answered, Asked
from orchestration.course import Course

__all__ = ["Answered", "Asked", "answer_request"]


async def answer_request(asked: Asked) -> Answered:
    """Find the tools, let the model propose, check, run, and put into words; every stage is recorded.

    What goes wrong is part of what is returned. Whoever is cancelled while waiting ends the wait only: the
    request goes on to its end, and is answered to whoever asks again with its key. Raises RequestRefused.
    """
    course = Course(asked)
    await asyncio.shield(begin(course.run()))
    if course.refusal is not None:
        raise course.refusal
    return await run_in_database(read_answer, course.request.pk, retry_after=course.retry_after)
