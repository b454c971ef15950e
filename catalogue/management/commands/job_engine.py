import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand, json_object
from connectors.errors import InvalidAnswer, Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.yaml import UnusableText
from connectors.http_job.config import PRESETS, preset_text
from connectors.http_job.declaration import json_schema, read_declaration
from connectors.http_job.dry_run import describe_requests, describe_webhook


class Command(CatalogueCommand):
    makes_database = False
    help = "Check the declaration of an engine with a job API, and show what it would send. Nothing is sent."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("file", nargs="?", type=Path, help="a declaration in YAML")
        what.add_argument("--preset", choices=PRESETS, help="print one that ships, to begin with")
        what.add_argument("--schema", action="store_true", help="print the JSON Schema, for editors")
        parser.add_argument(
            "--arguments",
            type=json_object,
            default={},
            metavar="JSON",
            help="for the start that is shown",
        )
        parser.add_argument(
            "--delivery",
            type=Path,
            metavar="FILE",
            help="the JSON that the engine's webhook delivers, to see which end it reports",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["schema"]:
            self.stdout.write(json.dumps(json_schema(), indent=2))
        elif options["preset"]:
            self.stdout.write(preset_text(options["preset"]), ending="")
        else:
            self._show(options["file"], options["arguments"], options["delivery"])

    def _show(self, file: Path, arguments: dict[str, Any], delivery: Path | None) -> None:
        reading = file
        try:
            declared = read_declaration(file.read_text(encoding="utf-8"))
            parts = list(describe_requests(declared, arguments))
            if declared.webhook is not None:
                report = None
                if delivery is not None:
                    reading = delivery
                    report = parse_json(delivery.read_bytes())
                parts.append(describe_webhook(declared.webhook, report))
            elif delivery is not None:
                raise CommandError(f"{file} declares no webhook that could deliver something.")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{reading} cannot be read: {error}") from None
        except (UnusableText, UnreadableJSON) as error:
            raise CommandError(f"{reading} cannot be used:\n{error}") from None
        except (Rejected, InvalidAnswer) as error:
            raise CommandError(error.message) from None
        self.stdout.write("\n\n".join([f"{file} declares {declared.name}. It would send:", *parts]))
