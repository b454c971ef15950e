"""`manage.py import_openapi`"""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catalogue.history import command
from catalogue.management.base import CatalogueCommand
from catalogue.management.openapi_report import report_lines
from catalogue.management.secret_options import add_secret_options, json_object, read_secrets
from catalogue.openapi.importing import ImportRefused, ImportRequest, Selection, import_document
from catalogue.openapi.serializers import OpenApiImportSerializer
from connectors.http_tools.openapi.document import MAX_BYTES


class Command(CatalogueCommand):
    help = (
        "Import an OpenAPI 3 document (JSON or YAML): each chosen operation becomes an HTTP tool, each that "
        "cannot is refused with its reason. Ends with 1 if there is not one tool."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the document; everything in one file")
        parser.add_argument(
            "--source",
            default="",
            metavar="NAME",
            help="of the kind http, created if need be; called by the API's host if left out",
        )
        parser.add_argument(
            "--base-url", default="", metavar="URL", help="instead of the document's first server"
        )
        _add_selection(parser)
        parser.add_argument("--expose", action="store_true", help="enable new tools at once")
        parser.add_argument(
            "--prune", action="store_true", help="remove the source's tools that this import does not bring"
        )
        parser.add_argument(
            "--config",
            type=json_object,
            default={},
            metavar="JSON",
            help="further settings of a new source, such as username",
        )
        add_secret_options(parser)
        parser.add_argument("--dry-run", action="store_true", help="write nothing, tell what would come")
        parser.add_argument("--json", action="store_true", help="tell it all as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            outcome = import_document(_request(options))
        except ImportRefused as refused:
            raise CommandError(f"Nothing was imported.\n{refused}") from None
        if options["json"]:
            self.stdout.write(json.dumps(OpenApiImportSerializer(outcome).data, indent=2))
        else:
            for line in report_lines(outcome, all_names=options["verbosity"] > 1):
                self.stdout.write(line)
        if not outcome.tools:
            raise CommandError("Nothing was imported.")


def _add_selection(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help='operations by id, path or both, such as "issues/*", "/repos/*" or "GET /repos/*"',
    )
    parser.add_argument(
        "--tag",
        nargs="+",
        action="extend",
        default=[],
        metavar="TAG",
        help="operations with one of these tags",
    )
    parser.add_argument(
        "--deprecated", action="store_true", help="also operations that the document calls deprecated"
    )


def _request(options: dict[str, Any]) -> ImportRequest:
    return ImportRequest(
        content=_read(Path(options["file"])),
        source=options["source"],
        base_url=options["base_url"],
        settings=options["config"],
        secrets=read_secrets(options),
        selection=Selection(
            only=tuple(options["only"]), tags=tuple(options["tag"]), deprecated=options["deprecated"]
        ),
        expose=options["expose"],
        prune=options["prune"],
        dry_run=options["dry_run"],
        by=command("import_openapi"),
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from None
