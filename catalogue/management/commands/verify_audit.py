import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError

from audit.sealing import Report, verify, verify_lines
from catalogue.management.base import CatalogueCommand, why_unreadable


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
            with open(path, encoding="utf-8") as lines:
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
    lines = [f"{report.segments} segments with {report.entries} entries; {report.unsealed} unsealed{since}."]
    if report.pruned:
        lines.append(f"The retention has emptied {report.pruned} segments; their digests are in the chain.")
    if report.vanished:
        lines.append(f"{report.vanished} entries refer to records that no longer exist.")
    if report.unknown_keys:
        lines.append(
            f"{report.unknown_keys} segments were sealed with a SECRET_KEY that is no longer known: their "
            "chain was checked, their seals were not."
        )
    if report.head:
        lines.append(f"Head: {report.head}")
    return lines
