#!/usr/bin/env python
"""Workflow Catalogue's command line."""

import errno
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
    except OSError as error:
        if not (problem := _describe_folder(error)):
            raise
        sys.exit(problem)


def _describe(error: Exception) -> str:
    """What went wrong and what helps; the traceback is for those who have asked for much."""
    from loguru import logger

    from catalogue.database_problems import describe_problem

    logger.opt(exception=error).debug("The command was broken off")
    return describe_problem(error)


def _describe_folder(error: OSError) -> str:
    """Empty if the error has nothing to do with the data folder. One of a write that fails names no file."""
    from django.conf import settings

    folder = str(settings.DATA_DIR)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) or str(error.filename).startswith(folder):
        return (
            f"The data folder {folder} cannot be used: {error}. Make it writable for this user, with space "
            "on its disk, or set CATALOGUE_DATA_DIR to another folder."
        )
    return ""


if __name__ == "__main__":
    main()
