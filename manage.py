#!/usr/bin/env python
"""Workflow Catalogue's command line."""

import os
import sys

INTERRUPTED, UNREAD = 130, 141
"""As shells have it for Ctrl-C, and for a program whose output nobody reads any more."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Some other pipe or connection may have broken as well.
        if not _is_unread():
            raise
        # `head` has seen enough. The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(UNREAD)


def _is_unread() -> bool:
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def _run() -> None:
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError, OperationalError, ProgrammingError

    try:
        execute_from_command_line(sys.argv)
    except DatabaseError as error:
        # SQLite tells of a file that is broken, or no database at all, with the plain class.
        if type(error) not in (DatabaseError, OperationalError, ProgrammingError):
            raise
        sys.exit(_describe(error))


def _describe(error: Exception) -> str:
    """What went wrong and what helps; the traceback is for those who have asked for much."""
    from django.conf import settings
    from loguru import logger

    from config.environment import MIGRATE_FIRST

    logger.opt(exception=error).debug("The command was broken off")
    reason, database = str(error).partition("\n")[0], settings.DATABASES["default"]
    question = "Is DATABASE_URL right, and is its server running?"
    if database["ENGINE"] == "config.sqlite":
        question = f"Is {database['NAME']} the right file, and can this user write it and its folder?"
        if "disk is full" in reason:
            return f"The database cannot be used: {reason}\nMake space on the disk of {database['NAME']}."
    return f"The database cannot be used: {reason}\n{question} {MIGRATE_FIRST}"


if __name__ == "__main__":
    main()
