"""Puts forty instructions over twelve tools to a model, and says how often it chose the right call.

The model is the product's: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL. No tool is called.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import django

from dev.evaluation.instructions import Instruction, read_instructions

if TYPE_CHECKING:
    from dev.evaluation.attempts import Attempt

NOTHING_CONFIGURED = """\
No model is configured. Set OPENAI_MODEL, with OPENAI_API_KEY for OpenAI's own server, or with OPENAI_BASE_URL
for any other that speaks the API of chat completions, and run this again, for example:

    OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_MODEL=some-model make eval"""
NOT_OURS = ("DATABASE_URL", "CELERY_BROKER_URL")


def main() -> None:
    options = _read_options()
    chosen = [it for it in read_instructions() if it.id.startswith(tuple(options.only or [""]))]
    if not chosen:
        sys.exit(f"No instruction begins with {' or '.join(options.only)}; instructions.yaml has all.")
    with _own_data():
        _evaluate(chosen, options)


def _evaluate(chosen: list[Instruction], options: argparse.Namespace) -> None:
    from django.conf import settings

    model: str = settings.CATALOGUE.openai_model
    if not model:
        sys.exit(NOTHING_CONFIGURED)
    from django.core.management import call_command

    from dev.evaluation.attempts import CannotRun
    from dev.evaluation.report import as_json, summary

    call_command("migrate", verbosity=0)
    try:
        attempts = asyncio.run(_attempt(chosen, repeat=options.repeat, quiet=options.json))
    except CannotRun as error:
        sys.exit(f"The model cannot be asked. {error}")
    if options.json:
        print(json.dumps(as_json(attempts, model=model), ensure_ascii=False, indent=2))
    else:
        print(f"\n{model} at {settings.CATALOGUE.openai_base_url}", *summary(attempts), sep="\n")


async def _attempt(chosen: list[Instruction], *, repeat: int, quiet: bool) -> list["Attempt"]:
    from dev.evaluation.attempts import ask_all
    from dev.evaluation.report import line_of

    attempts = []
    async for attempt in ask_all(chosen, repeat=repeat):
        attempts.append(attempt)
        if not quiet:
            print(line_of(attempt), flush=True)
    return attempts


@contextmanager
def _own_data() -> Iterator[None]:
    """A folder that is gone afterwards, with SQLite; of the settings only the model's are taken over."""
    for name in list(os.environ):
        if name in NOT_OURS or (name.startswith("CATALOGUE_") and not name.startswith("CATALOGUE_MODEL_")):
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="workflow-catalogue-eval-") as folder:
        # What goes wrong with a model is in the report.
        os.environ |= {
            "CATALOGUE_DATA_DIR": folder,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "LOG_LEVEL": "ERROR",
        }
        django.setup()
        yield


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dev.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only", action="append", metavar="ID", help="only those whose id begins so; may be given repeatedly"
    )
    add("--repeat", type=_count, default=1, metavar="N", help="ask each so many times (default: 1)")
    add("--json", action="store_true", help="print everything as JSON, at the end")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError("a number from 1 on")
    return int(text)


if __name__ == "__main__":
    main()
