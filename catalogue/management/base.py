import errno
import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db.models import QuerySet

from catalogue.actions.workflows import UnknownWorkflows, choose_workflows
from catalogue.database import prepare_embedded_database, warn_of_pending_migrations
from catalogue.models import Source, Workflow
from connectors.errors import Misconfigured
from connectors.network.redaction import escaped
from telemetry import metrics

if TYPE_CHECKING:
    from rest_framework.serializers import BaseSerializer


class _Output(OutputWrapper):
    """Texts of engines do not control a terminal. Files and pipes get them as they are."""

    def write(self, msg: str = "", *args: Any, **options: Any) -> None:  # type: ignore[override]
        super().write(escaped(msg, but="\t\n") if self.isatty() else msg, *args, **options)


class CatalogueCommand(BaseCommand):
    """Skips system checks, which cost half a second and run in CI; creates a missing embedded database."""

    requires_system_checks: list[str] = []
    makes_database = True
    serves_metrics = False

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        super().__init__(stdout, stderr, **options)
        style_of_errors = self.stderr.style_func
        self.stdout, self.stderr = _Output(stdout or sys.stdout), _Output(stderr or sys.stderr)
        self.stderr.style_func = style_of_errors

    def execute(self, *args: Any, **options: Any) -> str | None:
        if self.serves_metrics:
            serve_metrics(settings.METRICS_ADDRESS)
        if self.makes_database:
            prepare_embedded_database(only_new=True)
        if self.serves_metrics:
            warn_of_pending_migrations()
        return super().execute(*args, **options)


def serve_metrics(address: str) -> None:
    """Before everything else of a process, which would only fail later. Raises CommandError."""
    try:
        metrics.serve_if_asked(address, settings.PROCESS)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "it is in use, perhaps by another process with this setting"
        raise CommandError(
            f"Metrics cannot be served at CATALOGUE_METRICS_ADDRESS={address}: {why}. Choose an address of "
            "this machine that no other process uses, or none: a web process shows the metrics of all "
            "processes with its data folder at /metrics."
        ) from None


class ImportCommand(CatalogueCommand):
    refused = "Nothing was imported."

    def read(self, path: str, most_bytes: int) -> bytes:
        """Reads one byte over the limit, so that the parser refuses larger input; `-` is standard input."""
        try:
            if path == "-":
                return sys.stdin.buffer.read(most_bytes + 1)
            with open(path, "rb") as file:
                return file.read(most_bytes + 1)
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from None

    @contextmanager
    def refusals_as_errors(self) -> Iterator[None]:
        # Commands that import nothing start faster without the importers.
        from catalogue.imports.pipeline import ImportRefused

        try:
            yield
        except (ImportRefused, Misconfigured) as error:
            raise CommandError(f"{self.refused}\n{error}") from None


def add_consent_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        *("--yes", "--no-input"), action="store_true", dest="consents", help="do what it shows without asking"
    )


def ask_for_consent(question: str, options: dict[str, Any]) -> None:
    """Raises CommandError unless the person at the terminal agrees, or did so by the option."""
    if options["consents"]:
        return
    if not sys.stdin.isatty():
        raise CommandError("Nothing was changed. Review what is shown, and repeat the command with --yes.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was changed.")


class WorkflowSelectionCommand(CatalogueCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--source", required=True, metavar="NAME")
        parser.add_argument("--all", action="store_true", help="every workflow of the source")
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help="tool names, workflow names or engine's ids"
        )

    def selected(self, options: dict[str, Any]) -> QuerySet[Workflow]:
        """Raises CommandError for an unknown source or name; nothing is changed then."""
        if options["all"] == bool(options["names"]):
            raise CommandError("Give either names or --all.")
        source = source_named(options["source"])
        try:
            return choose_workflows(source, None if options["all"] else options["names"])
        except UnknownWorkflows as error:
            raise CommandError(str(error)) from None


def source_named(name: str) -> Source:
    if (source := Source.objects.filter(name=name).first()) is None:
        raise CommandError(f"No such source: {name}")
    return source


def refusal_of(error: ValidationError) -> CommandError:
    """A line for each field."""
    if not hasattr(error, "error_dict"):
        return CommandError(" ".join(error.messages))
    by_field = error.message_dict.items()
    return CommandError(
        "\n".join(
            " ".join(messages) if field == NON_FIELD_ERRORS else f"{field}: {' '.join(messages)}"
            for field, messages in by_field
        )
    )


def why_unreadable(error: OSError | UnicodeError) -> str:
    return "it is not UTF-8 text" if isinstance(error, UnicodeError) else error.strerror or str(error)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a function for the `type` of an option, which raises ArgumentTypeError."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            bounds = f"from {least} on" if most is None else f"from {least} to {most}"
            raise ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
        return number

    return read


def add_field_options(
    parser: ArgumentParser, serializer: "BaseSerializer[Any]", *names: str, **other_names: str
) -> None:
    """Adds an option for each of these fields, with its help text, type, choices and default; by another name
    if one is given for it."""
    # Commands without such options start faster without REST.
    from rest_framework import serializers

    fields = serializer.fields  # type: ignore[attr-defined]
    for name in names:
        field = fields[name]
        way: dict[str, Any] = {"default": None if field.default is serializers.empty else field.default}
        if isinstance(field, serializers.BooleanField):
            way = {"action": "store_true"}
        elif isinstance(field, serializers.ListField):
            way = {"nargs": "+", "action": "extend", "default": []}
        elif isinstance(field, serializers.ChoiceField):
            way["choices"] = list(field.choices)
        elif isinstance(field, serializers.IntegerField):
            way |= {"type": int, "metavar": "N"}
        option = f"--{other_names.get(name, name).replace('_', '-')}"
        parser.add_argument(option, dest=name, help=str(field.help_text).replace("%", "%%"), **way)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError("must be a JSON object")
    return value


def key_and_value(text: str) -> tuple[str, str]:
    """Raises ArgumentTypeError without a value too: a shell's variable was probably unset."""
    key, _, value = text.partition("=")
    if not key or not value:
        raise ArgumentTypeError("must look like KEY=VALUE")
    return key, value


def key_and_file(text: str) -> tuple[str, str]:
    """The key, and the text of the file."""
    key, name = key_and_value(text)
    try:
        return key, Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(f"{name} cannot be read: {why_unreadable(error)}") from None


def key_and_variable(text: str) -> tuple[str, str]:
    """The key, and the value of the environment variable."""
    key, variable = key_and_value(text)
    if not (value := os.environ.get(variable)):
        raise ArgumentTypeError(
            f"the environment variable {variable} is {'not set' if value is None else 'empty'}"
        )
    return key, value


def add_secret_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--secret",
        type=key_and_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that is stored encrypted, such as api_key; may be repeated. Other users of this "
        "machine can read it in the list of processes while the command runs",
    )
    parser.add_argument(
        *("--secret-env", "--secret-from"),  # The second was its name in `import_temporal`
        type=key_and_variable,
        action="append",
        default=[],
        metavar="KEY=VARIABLE",
        help="the same, with the value of an environment variable; may be repeated",
    )
    parser.add_argument(
        "--secrets-stdin",
        action="store_true",
        help="the same, from standard input: a JSON object with all of them by key",
    )


def read_secrets(options: dict[str, Any]) -> dict[str, str]:
    given = dict(options["secret"]) | dict(options["secret_env"])
    if not options["secrets_stdin"]:
        return given
    try:
        read = json_object(sys.stdin.read())
    except ArgumentTypeError as error:
        # Without the text: it is secret.
        raise CommandError(f"standard input: {error}") from None
    if not all(isinstance(value, str) for value in read.values()):
        raise CommandError("standard input: each secret must be a string")
    return given | read
