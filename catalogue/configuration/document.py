"""Reading the file: every mistake is told with its line and key, and what to do about it."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from catalogue.configuration.fields import SECTIONS, VERSION, Curated
from catalogue.fields import JSONTextField
from catalogue.naming import find_similar_names
from connectors.formats.yaml import Document, Limits, Path, Problem, UnusableText, name_of, read_document

LIMITS = Limits(bytes=16 * 1024 * 1024, depth=250, parts=600_000, integer=10**40)
"""For about 5,000 workflows with their schemas."""
CAREFUL_BYTES = 256 * 1024
"""Up to here mistakes are told in the best words that there are; larger files are read by libyaml."""
TYPES: Mapping[type, str] = {bool: "true or false", int: "a whole number", str: "a text", list: "a list"}


class ConfigurationRefused(Exception):
    """Nothing was changed; every reason is a sentence that says where."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


@dataclass(slots=True)
class CatalogueFile:
    """What a file says, and what is wrong with it as far as it was looked at."""

    document: Document
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def read(cls, content: bytes) -> "CatalogueFile":
        """Raises ConfigurationRefused for what is no YAML, or of another version than ours."""
        try:
            document = read_document(content, limits=LIMITS, fast=len(content) > CAREFUL_BYTES)
        except UnusableText as error:
            raise ConfigurationRefused(error.reasons) from None
        file = cls(document, document.problems)
        file._check_version()
        file.mapping((), known=("version", *SECTIONS))
        return file

    def has(self, *path: str | int) -> bool:
        value = self.document.value
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    def refuse(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self.document.line_of(path), name_of(path), message))

    def refuse_all(self, path: Path, error: ValidationError, names: Mapping[str, str] | None = None) -> None:
        """What a model refuses; `names`: what the file calls its fields."""
        if not hasattr(error, "error_dict"):
            for message in error.messages:
                self.refuse(path, message)
            return
        for field_name, messages in error.message_dict.items():
            name = (names or {}).get(field_name, field_name)
            for message in messages:
                self.refuse((*path, name) if self.has(*path, name) else path, message)

    def refuse_unknown(self, path: Path, message: str, name: str, known: Iterable[str]) -> None:
        """The message, and the names that may have been meant."""
        similar = find_similar_names(name, known)
        self.refuse(path, message + (f"; did you mean {' or '.join(similar)}?" if similar else ""))

    def raise_problems(self) -> None:
        if self.problems:
            raise ConfigurationRefused(UnusableText(self.problems).reasons)

    def mapping(self, path: Path, *, known: Iterable[str] | None = None) -> dict[str, Any]:
        """The mapping there, without keys that are not known; empty where there is none."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(path, "has to be a mapping, that is keys with values")
            return {}
        if known is None:
            return value
        known = tuple(known)
        for key in value:
            if key not in known:
                told = f"there is no such key here, there are {', '.join(known)}"
                self.refuse_unknown((*path, key), told, key, known)
        return {key: given for key, given in value.items() if key in known}

    def items(self, path: Path, kind: type) -> list[Any]:
        """The list there, without what is of another type; empty where there is none."""
        value = self.at(path)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(path, "has to be a list")
            return []
        wanted = "a mapping" if kind is dict else TYPES[kind]
        for index, one in enumerate(value):
            if not isinstance(one, kind):
                self.refuse((*path, index), f"has to be {wanted}")
        return [one for one in value if isinstance(one, kind)]

    def fields(self, path: Path, curated: Curated, given: Mapping[str, Any]) -> dict[str, Any]:
        """By the model's names: what is given of the model's fields, and the defaults of the others."""
        values = {}
        for name, field_name in curated.names.items():
            values[field_name] = deepcopy(curated.defaults[field_name])
            if name in given and self._has_type((*path, name), curated.model, field_name, given[name]):
                values[field_name] = given[name]
        return values

    def at(self, path: Path) -> Any:
        value = self.document.value
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _has_type(self, path: Path, model: type[models.Model], name: str, value: Any) -> bool:
        """Django would take `0` for false and `5` for a text; which values are allowed, it says itself."""
        column: Any = model._meta.get_field(name)
        if value is None:
            if not column.null:
                self.refuse(path, "needs a value; leave the key out for the default")
            return bool(column.null)
        if (wanted := _type_of(column)) is None or type(value) is wanted:
            return True
        quotes = "; put it in quotes" if wanted is str else ""
        self.refuse(path, f"has to be {TYPES[wanted]}{quotes}")
        return False

    def _check_version(self) -> None:
        value = self.document.value
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION or isinstance(version, bool):
            told = "a file begins with `version: 1`" if version is None else f"version {version} is not known"
            path = ("version",) if version is not None else ()
            self.refuse(path, f"{told}; this product reads version {VERSION}, as its export writes it")
            self.raise_problems()


def _type_of(column: Any) -> type | None:
    """None for columns of any JSON."""
    if isinstance(column, models.BooleanField):
        return bool
    if isinstance(column, models.IntegerField):
        return int
    if isinstance(column, JSONTextField):
        return None
    return str if isinstance(column, models.CharField | models.TextField) else None
