"""What texts name is there: pages, headings, files, tests, targets, settings, commands."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import yaml
from django.core.management import get_commands

from config.environment import variable_names
from connectors.http_job.declaration import Declaration
from connectors.http_tools.tool import ToolConfig
from connectors.temporal.declarations import DefinitionsFile
from tests.docs.reading import GUIDES, NOW, PAGES, TARGETS, listed, parser, report
from tests.processes import ROOT

CODE = listed("*.py", "*.toml", "*.sh", "*.yaml", "*Dockerfile", "Makefile", ".ci/run")
TEXTS = [*CODE, *(page.path for page in NOW)]
SETTINGS = {*variable_names(), "OPENAI_API_KEY", "OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_HEADERS"}
FOLDERS = "|".join(sorted({re.escape(path.relative_to(ROOT).parts[0]) for path in listed("*/*")}))
PATH = r"(?<![\w/.$~^)-])((?:%s)/[\w./*-]*[\w*/])(?:::(\w+))?"
ANYWHERE, IN_MODULES = re.compile(PATH % FOLDERS), re.compile(PATH % "dev|deploy|docs|requirements")
"""Of other folders in modules, the names of templates and routes look the same."""


def lines(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if re.search("/|make |[A-Z]_", line):
                yield f"{file.relative_to(ROOT)}:{number}", line


def test_links_lead_to_pages_headings_and_files():
    anchors = {page.path: page.anchors for page in PAGES}

    def broken() -> Iterator[tuple[str, str]]:
        for file, place, link in ((page.path, *link) for page in PAGES for link in page.links):
            name, _, anchor = unquote(link).partition("#")
            target = (file.parent / name).resolve() if name else file
            if not re.match(r"\w+:", link) and not target.exists():
                yield place, f"there is no {name}: link to where its content is"
            elif anchor and anchor not in anchors.get(target, {anchor}):
                yield place, f"{target.name} has no heading #{anchor}: link to the one that has its content"

    report(broken())


def test_every_page_and_picture_is_shown():
    with (ROOT / "deploy" / "site" / "zensical.toml").open("rb") as file:
        nav = re.findall(r"'([\w/-]+\.md)'", str(tomllib.load(file)["project"]["nav"]))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | {"decisions/index.md"}
    wrong = {name for name in {*nav, *pages} if nav.count(name) != 1 or name not in pages}
    report(("deploy/site/zensical.toml", f"{name}: nav shall have each page once") for name in sorted(wrong))
    links = ((page.path.parent, link.partition("#")[0]) for page in PAGES for _, link in page.links)
    shown = {(folder / name).resolve() for folder, name in links}
    lost = {*listed("docs/*/*")} - shown - {ROOT / "docs" / "decisions" / "index.md"}
    report((str(path.relative_to(ROOT)), "no page links to it: link to it, or delete it") for path in lost)


def test_parts_of_the_code_that_its_guides_name_are_there():
    words = {word for path in CODE for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    guides = [page for page in PAGES if page.path.name in ("architecture.md", "CONTRIBUTING.md")]
    report(
        (place, f"there is no {name} in the code: name what does it")
        for place, name in (code for page in guides for code in page.code)
        if re.fullmatch(r"[a-z]+_\w+|[A-Z][a-z]+[A-Z]\w+", name) and name not in words
    )


def test_files_and_tests_that_texts_name_are_there():
    def missing() -> Iterator[tuple[str, str]]:
        for place, name in (code for page in NOW for code in page.code):
            if re.fullmatch(r"\w+\.py", name) and not listed(name, f"*/{name}"):
                yield place, f"there is no {name}: name the module that does it"
        for place, line in lines(TEXTS):
            for path, test in (IN_MODULES if ".py:" in place else ANYWHERE).findall(line):
                there = [*ROOT.glob(path.rstrip("/")), *(ROOT / "tests").glob(path.rstrip("/"))]
                if not there:
                    yield place, f"there is no {path}: name where it is"
                elif test and f"def {test}(" not in there[0].read_text(encoding="utf-8"):
                    yield place, f"{path} has no {test}: name the test that shows it"

    report(missing())


def test_settings_and_targets_that_texts_name_are_there():
    report(
        (place, f"there is no setting {name}: see docs/settings.md")
        for place, line in lines([page.path for page in GUIDES])
        for name in re.findall(r"\b(?:CATALOGUE|OPENAI|EMAIL|OTEL|CELERY)_[A-Z_]*[A-Z]\b(?!\*)", line)
        if name not in SETTINGS and not name.startswith("CATALOGUE_SECRET_")
    )
    report(
        (place, f"there is no `make {target}`: see `make help`")
        for place, line in lines(TEXTS)
        for target in set(re.findall(r"`make ([a-z][a-z0-9-]*)", line)) - TARGETS
    )


def test_commands_that_pages_mention_are_there_with_their_options():
    def wrong() -> Iterator[tuple[str, str]]:
        for place, text in (code for page in NOW for code in page.code):
            program, name, rest = re.findall(r"(?s)^(.*manage\.py |workflow-catalogue )?(\w*)(.*)", text)[0]
            if name in get_commands():
                options = {*re.findall(r"(?<!\S)--[a-z-]+", rest)} - {*parser(name)._option_string_actions}
                yield from ((place, f"{name} has no {one}: see `manage.py help {name}`") for one in options)
            elif program and name.islower() and name != "help":
                yield place, f"there is no command {name}: see `manage.py help`"

    report(wrong())


def test_every_command_alert_and_key_of_a_file_is_explained():
    shown = "\n".join(text for page in GUIDES for _, text, *_ in [*page.code, *page.blocks])
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    names = {path.stem: "command" for path in ROOT.glob("*/management/commands/[!_]*.py")}
    names |= {rule["alert"]: "alert" for rule in group["rules"]}
    for file in (ToolConfig, DefinitionsFile, Declaration):
        schema = file.model_json_schema()
        for part in (schema, *schema["$defs"].values()):
            names |= dict.fromkeys(part.get("properties", ()), f"key of a {file.__name__}")
    lost = (name for name in sorted(names) if not re.search(rf"\b{name}\b", shown))
    report((name, f"no page has this {names[name]} in code: say there what it is for") for name in lost)
