import asyncio
import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from pydantic import ValidationError

from catalogue.management.base import (
    CatalogueCommand,
    add_secret_options,
    json_object,
    read_secrets,
    why_unreadable,
)
from connectors.errors import ConnectorError, InvalidAnswer, Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.yaml import UnusableText, message_of
from connectors.http_job.declaration import json_schema, read_declaration
from connectors.http_job.engine import PRESETS, HttpJobConfig, preset_text
from connectors.http_job.trial import Trial, describe_requests, describe_webhook


class Command(CatalogueCommand):
    makes_database = False
    help = (
        "Check the declaration of an engine with a job API, and show what it would send. With --at, try it "
        "there: list workflows, run one of them, and show what each expression finds. Nothing is stored."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("file", nargs="?", type=Path, help="a declaration in YAML")
        what.add_argument(
            "--preset", choices=PRESETS, help="print one that ships, to begin with; with --at, try that one"
        )
        what.add_argument("--schema", action="store_true", help="print the JSON Schema, for editors")
        parser.add_argument("--arguments", type=json_object, default={}, metavar="JSON", help="for the start")
        parser.add_argument("--at", metavar="ADDRESS", help="list the workflows of the engine there")
        parser.add_argument("--run", metavar="WORKFLOW", help="start that one too, and follow the run")
        parser.add_argument("--cancel", action="store_true", help="cancel that run once it is running")
        parser.add_argument(
            "--config", type=json_object, default={}, metavar="JSON", help="other settings of the source"
        )
        add_secret_options(parser)
        parser.add_argument(
            "--delivery",
            type=Path,
            metavar="FILE",
            help="the JSON that the engine's webhook delivers, to see which end it reports",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["schema"]:
            self.stdout.write(json.dumps(json_schema(), indent=2))
        elif options["at"]:
            self._try(options)
        elif options["run"] or options["cancel"]:
            raise CommandError("A run needs an engine: give its address with --at.")
        elif options["preset"]:
            self.stdout.write(preset_text(options["preset"]), ending="")
        else:
            self._show(options["file"], options["arguments"], options["delivery"])

    def _show(self, file: Path, arguments: dict[str, Any], delivery: Path | None) -> None:
        declared = read_declaration(self._text_of(file))
        if delivery is not None and declared.webhook is None:
            raise CommandError(f"{file} declares no webhook.")
        try:
            parts = list(describe_requests(declared, arguments))
            if declared.webhook is not None:
                report = None if delivery is None else parse_json(delivery.read_bytes())
                parts.append(describe_webhook(declared.webhook, report))
        except OSError as error:
            raise CommandError(f"{delivery} cannot be read: {why_unreadable(error)}.") from None
        except UnreadableJSON as error:
            raise CommandError(f"{delivery} cannot be used:\n{error}") from None
        except (Rejected, InvalidAnswer) as error:
            raise CommandError(error.message) from None
        self.stdout.write("\n\n".join([f"{file} declares {declared.name}. It would send:", *parts]))

    def _text_of(self, file: Path) -> str:
        """Of a declaration without mistakes."""
        try:
            text = file.read_text(encoding="utf-8")
            read_declaration(text)
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{file} cannot be read: {why_unreadable(error)}.") from None
        except UnusableText as error:
            raise CommandError(f"{file} cannot be used:\n{error}") from None
        return text

    def _try(self, options: dict[str, Any]) -> None:
        chosen = {"preset": options["preset"]} if options["preset"] else {}
        declared = {} if options["preset"] else {"declaration": self._text_of(options["file"])}
        given = options["config"] | read_secrets(options) | chosen | declared | {"base_url": options["at"]}
        try:
            asyncio.run(self._follow(HttpJobConfig.model_validate(given), options))
        except ValidationError as error:
            told = (
                f"{'.'.join(map(str, one['loc'])) or 'settings'}: {message_of(one)}"
                for one in error.errors(include_url=False)
            )
            raise CommandError("\n".join(told)) from None
        except ConnectorError as error:
            raise CommandError(error.message) from None

    async def _follow(self, config: HttpJobConfig, options: dict[str, Any]) -> None:
        trial = Trial(config, self.stdout.write)
        try:
            workflows = await trial.find_workflows()
            if not options["run"]:
                return
            chosen = [one for one in workflows if options["run"] in (one.id, one.name)]
            if not chosen:
                raise CommandError(f"The engine has no workflow {options['run']}; nothing was started.")
            await trial.run(chosen[0], options["arguments"], cancel=options["cancel"])
        finally:
            await trial.aclose()
