#!/usr/bin/env python
"""Workflow Catalogue's command line."""

import errno
import os
import sys
from pathlib import Path

INTERRUPTED, UNREAD = 130, 141
"""As shells have it for Ctrl-C, and for a program whose output nobody reads any more."""

OURS = {
    "Run and back up": ["config"],
    "Engines, workflows and the audit": ["catalogue"],
    "Runs": ["executions"],
    "Tools, clients and tokens": ["mcp_bridge", "identity"],
}
"""The groups of commands by their heading, with the rooms that have them."""
OF_DJANGO = ["changepassword", "check", "createsuperuser", "dbshell", "migrate", "shell"]
"""What an installation needs of the others."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        if sys.argv[1:2] == ["version"] or "--version" in sys.argv[1:]:
            sys.stdout.write(f"{_version()}\n")
        else:
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


def _version() -> str:
    import django

    version = Path(__file__).with_name("VERSION").read_text(encoding="ascii").strip()
    return f"Workflow Catalogue {version} (Django {django.get_version()})"


def _run() -> None:
    from django.core.management import ManagementUtility, get_commands
    from django.db import DatabaseError, OperationalError, ProgrammingError

    class CommandLine(ManagementUtility):
        def main_help_text(self, commands_only: bool = False) -> str:
            if commands_only or self.settings_exception is not None:
                return super().main_help_text(commands_only)
            groups = {
                heading: sorted(name for name, package in get_commands().items() if package in rooms)
                for heading, rooms in OURS.items()
            } | {"Database and users (Django's)": OF_DJANGO}
            blocks = ["\n    ".join([heading, *names]) for heading, names in groups.items()]
            more = "{0} help COMMAND explains one. {0} help --commands also lists Django's others."
            return "\n\n".join([_version(), *blocks, more.format(self.prog_name)])

    try:
        CommandLine(sys.argv).execute()
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
    """Returns what went wrong and what helps; logs the traceback at the level DEBUG."""
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
