from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError

from audit.models import Kind
from audit.sealing import export_lines
from catalogue.audit import record_export
from catalogue.history import command
from catalogue.management.base import CatalogueCommand


class Command(CatalogueCommand):
    help = "Write the audit to standard output as JSON lines; `verify_audit --file` checks them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--kind", action="append", default=[], choices=Kind.values, help="only these; may be repeated"
        )
        for name, what in (("--since", "from this time on"), ("--until", "before this time")):
            parser.add_argument(name, type=_moment, metavar="TIME", help=f"{what}, such as 2026-01-31T12:00Z")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["since"] and options["until"] and options["since"] >= options["until"]:
            raise CommandError("--since must be before --until.")
        chosen = {"kinds": options["kind"], "since": options["since"], "until": options["until"]}
        record_export(command("export_audit"), "audit", kinds=options["kind"])
        for line in export_lines(**chosen):
            self.stdout.write(line, ending="")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError("not a time such as 2026-01-31T12:00Z") from None
