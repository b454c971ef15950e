import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError

from audit.sealing import Report, verify, verify_lines
from catalogue.management.base import CatalogueCommand, why_unreadable
from catalogue.naming import counted


class Command(CatalogueCommand):
    help = (
        "Check that every sealed entry of the audit is present and unchanged. Names each entry that is "
        "missing or changed, and then fails. docs/audit.md says what this proves."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        checked = parser.add_mutually_exclusive_group()
        checked.add_argument(
            "--head",
            type=_head,
            metavar="NUMBER:DIGEST",
            help="a head that was printed earlier and stored elsewhere: proves that nothing is cut off",
        )
        checked.add_argument(
            "--file", metavar="FILE", help="check an export instead, on its own; - is standard input"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path, known_head = options["file"], options["head"]
        report = self._verify_file(path) if path else verify(known_head=known_head or "")
        for line in _describe(report):
            self.stdout.write(line)
        if not report.holds:
            problems = "\n".join(map(str, report.problems))
            raise CommandError(f"The audit does not hold:\n{problems}")
        self.stdout.write("The audit holds.")

    def _verify_file(self, path: str) -> Report:
        if path == "-":
            return verify_lines(sys.stdin)
        try:
            with open(path, encoding="utf-8-sig") as lines:
                return verify_lines(lines)
        except (OSError, UnicodeError) as error:
            raise CommandError(f"{path} cannot be read: {why_unreadable(error)}.") from None


def _head(text: str) -> str:
    """Otherwise a mistyped head would look like an audit that was cut off."""
    if re.fullmatch("[0-9]+:[0-9a-f]{64}", text) is None:
        raise ArgumentTypeError("must be a head as printed by seal_audit: number, colon, 64 hex digits")
    return text


def _describe(report: Report) -> list[str]:
    since = (
        f", the oldest since {report.unsealed_since:%Y-%m-%d %H:%M:%S} UTC" if report.unsealed_since else ""
    )
    segments, entries = counted(report.segments, "segment"), counted(report.entries, "entry", "entries")
    lines = [f"{segments} with {entries}; {report.unsealed:,} unsealed{since}."]
    if report.pruned:
        emptied = counted(report.pruned, "segment")
        lines.append(f"The retention has emptied {emptied}; the digests are in the chain.")
    if report.vanished:
        refer = counted(report.vanished, "entry refers", "entries refer")
        lines.append(f"{refer} to records that no longer exist.")
    if report.unknown_keys:
        sealed = counted(report.unknown_keys, "segment was", "segments were")
        lines.append(
            f"{sealed} sealed with a SECRET_KEY that is no longer known: "
            "the chain was checked, the seals were not."
        )
    if report.head:
        lines.append(f"Head: {report.head}")
    return lines
