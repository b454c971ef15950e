"""Private names of other packages change without notice: only a `compat.py` may use them."""

import ast
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from django.contrib.admin import ModelAdmin
from django.http import HttpResponse
from django.utils.log import log_response
from kombu.transport import filesystem
from psycopg_pool import ConnectionPool
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.processes import ROOT
from tests.syntax_trees import nodes_of, tree_of

ROOMS = (
    "telemetry",
    "connectors",
    "audit",
    "catalogue",
    "executions",
    "mcp_bridge",
    "orchestration",
    "config",
)
DOCUMENTED = {"_base_manager", "_default_manager", "_fields", "_meta", "_state"}
"""Attributes of Django's models and of named tuples that their documentation describes."""


def private_imports(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package not in ROOMS and any(is_private(part) for part in parts):
                yield name


def private_attributes(tree: ast.AST, *, inherited: Callable[[str], bool]) -> Iterator[str]:
    """Of objects whose private names this module does not define; `inherited`: another class of ours does."""
    own = Counter(defined_in(tree))
    for node in nodes_of(tree):
        match node:
            case ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"))):
                is_foreign = own[name] < 2 and not inherited(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")):
                is_foreign = not own[name] and not inherited(name)
            case ast.Attribute(attr=name):
                is_foreign = not own[name]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                is_foreign = not own[name]
            case _:
                continue
        if is_foreign and is_private(name) and name not in DOCUMENTED:
            yield name


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Private methods, fields and attributes of `self` that the module gives its own classes."""
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield name


def is_private(name: str) -> bool:
    return len(name) > 1 and name.startswith("_") and name[:2] != "__"


@cache
def product() -> dict[Path, ast.Module]:
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    return {file: tree_of(file) for file in files}


def names_outside_compat(names_in: Callable[[Path, ast.Module], Iterator[str]]) -> set[str]:
    return {
        f"{file.relative_to(ROOT)}: {name}"
        for file, tree in product().items()
        if file.name != "compat.py"
        for name in names_in(file, tree)
    }


def test_only_compat_modules_import_private_names_of_other_packages() -> None:
    assert not names_outside_compat(lambda _, tree: private_imports(tree))


def test_only_compat_modules_use_private_attributes_of_other_packages() -> None:
    defined = Counter(name for tree in product().values() for name in set(defined_in(tree)))

    def foreign(_: Path, tree: ast.Module) -> Iterator[str]:
        own = set(defined_in(tree))
        return private_attributes(tree, inherited=lambda name: defined[name] > (name in own))

    assert not names_outside_compat(foreign)


def test_a_private_name_is_noticed_in_every_form_of_import() -> None:
    text = "import a._b\nfrom a._b import c\nfrom a import _c\nfrom __future__ import annotations\nimport a.b"
    assert list(private_imports(ast.parse(text))) == ["a._b", "a._b.c", "a._c"]


def test_a_private_attribute_is_noticed_in_every_form_of_use() -> None:
    text = (
        "class Own:\n    def _mine(self):\n        self._kept = 1\n        super()._mine()\n"
        "        self._theirs()\n        self._base()\n"
        "a._b = 1\na.c._d()\ngetattr(a, '_e')\na._mine()\na._kept\nmodel._meta\na.__doc__\na.b"
    )
    found = private_attributes(ast.parse(text), inherited=lambda name: name == "_base")
    assert sorted(found) == ["_b", "_d", "_e", "_mine", "_theirs"]


def logged_response() -> HttpResponse:
    response = HttpResponse(status=500)
    log_response("Not for the log.", response=response, logger=logging.getLogger("tests.silent"))
    return response


USED: dict[str, tuple[Callable[[], Any], str]] = {
    "config.compat, the start of an answer": (lambda: HttpToolsProtocol, "_start_asgi_task"),
    "config.compat, an offer of another protocol": (
        lambda: HttpToolsProtocol,
        "_unsupported_upgrade_warning",
    ),
    "config.compat, the sender of request_finished": (HttpResponse, "_handler_class"),
    "config.compat, a pool's check": (lambda: ConnectionPool(open=False), "_check"),
    "config.celery, writing a message": (lambda: filesystem.Channel, "_put"),
    "config.celery, reading a message": (lambda: filesystem.Channel, "_get"),
    "connectors.network.compat, what had arrived": (lambda: aiohttp.StreamReader, "_read_nowait"),
    "catalogue.compat, the formsets of a form": (lambda: ModelAdmin, "_create_formsets"),
    "catalogue.compat, a logged response": (logged_response, "_has_been_logged"),
}
"""By use: what has the private attribute, and its name."""


@pytest.mark.parametrize("use", USED)
def test_a_private_name_that_the_product_relies_on_is_there(use: str) -> None:
    make, name = USED[use]
    assert hasattr(make(), name)


def test_every_private_name_in_a_compat_module_is_among_them() -> None:
    used = {
        name
        for file, tree in product().items()
        if file.name == "compat.py"
        for name in [*private_attributes(tree, inherited=lambda _: False), *defined_in(tree)]
        if is_private(name)
    }
    assert used <= {name for _, name in USED.values()}
