import re
import sys
from argparse import ArgumentParser
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand
from connectors.registry import connector_kinds

# Not connectors.testing itself, which needs pytest.
TEMPLATE = files("connectors") / "testing" / "package"
PRODUCT = Path(__file__).parents[3]
PLACES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "connector.py": "src/{name}_connector.py",
    "conftest.py": "tests/conftest.py",
    "engine.py": "tests/engine.py",
    "test_contract.py": "tests/test_{name}.py",
}


class Command(CatalogueCommand):
    makes_database = False
    help = "Create a package with a connector for an imitated engine and passing tests, as a starting point."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the engine, and the kind of its sources, such as my_engine")
        parser.add_argument(
            "--folder", type=Path, help="folder of the package; default: NAME-connector in this folder"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", name):
            raise CommandError("A name must begin with a letter and have only small letters, digits and '_'.")
        if name in connector_kinds():
            raise CommandError(f"A kind of source called {name} already exists; choose another name.")
        folder = options["folder"] or Path(f"{name.replace('_', '-')}-connector")
        try:
            folder.mkdir(parents=True)
            words = [word.capitalize() for word in name.split("_") if word]
            for template, place in PLACES.items():
                text = (TEMPLATE / f"{template}.txt").read_text(encoding="utf-8")
                # The template is for an engine called Lathe.
                text = text.replace('label = "Lathe"', f'label = "{" ".join(words)}"')
                text = text.replace("lathe-connector", f"{name.replace('_', '-')}-connector")
                text = text.replace("Lathe", "".join(words)).replace("lathe", name)
                target = folder / place.format(name=name)
                target.parent.mkdir(exist_ok=True)
                target.write_text(text, encoding="utf-8")
        except FileExistsError:
            raise CommandError(f"{folder} already exists; nothing was changed.") from None
        except OSError as error:
            raise CommandError(f"{folder} cannot be written: {error}") from None
        where, product, python = map(quote, (str(folder), str(PRODUCT), sys.executable))
        self.stdout.write(
            f"{folder} is a package with a connector; README.md says how to install it. To run its tests:\n"
            f"  cd {where} && PYTHONPATH={product} {python} -m pytest"
        )
