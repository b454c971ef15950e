"""The kinds of engines that this installation can connect, and the settings of each."""

import inspect
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from connectors.errors import Misconfigured
from connectors.protocol import Connector
from connectors.registry import connector_class
from connectors.settings import Hints, hints_of

EMPTY: tuple[Any, ...] = (None, "", [], {})
EMPTY_VALUES: dict[Any, Any] = {str: "", list: [], dict: {}}
"""The value of an empty field, unless it stands for the default; None for all other types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    name: str
    title: str
    help: str
    type: Any  # Without `Annotated` and `| None`
    optional: bool
    required: bool
    secret: bool
    default: Any  # As JSON; None where there is none
    bounds: "Bounds"
    hints: Hints
    can_be_empty: bool  # Emptiness is a value other than the default, so it cannot stand for the default

    empty: Any


@dataclass(frozen=True, slots=True)
class Bounds:
    lowest: float | None = None
    lowest_excluded: bool = False
    highest: float | None = None
    highest_excluded: bool = False

    def __str__(self) -> str:
        """`from 1 to 3,600`; empty without bounds."""
        words = []
        if self.lowest is not None:
            words.append(f"{'above' if self.lowest_excluded else 'from'} {self.lowest:,.15g}")
        if self.highest is not None:
            upward = "to" if words else "up to"
            words.append(f"{'below' if self.highest_excluded else upward} {self.highest:,.15g}")
        return " ".join(words)


def settings_of(kind: str) -> dict[str, Setting]:
    """By name, in the order of the Config. Raises Misconfigured for a kind without a usable connector."""
    return _read_settings(connector_class(kind).Config)


@cache
def _read_settings(config: type[BaseModel]) -> dict[str, Setting]:
    return {name: _read_setting(name, info) for name, info in config.model_fields.items()}


def _read_setting(name: str, info: FieldInfo) -> Setting:
    plain = plain_type(info.annotation)
    secret, empty = plain is SecretStr, EMPTY_VALUES.get(get_origin(plain) or plain)
    default = info.get_default(call_default_factory=True, validated_data={})
    default = None if secret or default is PydanticUndefined else to_jsonable_python(default)
    return Setting(
        name=name,
        title=info.title or name.replace("_", " ").capitalize(),
        help=info.description or "",
        type=plain,
        optional=NoneType in get_args(info.annotation),
        required=info.is_required(),
        secret=secret,
        default=default,
        bounds=_bounds_of(info),
        hints=hints_of(info),
        empty=empty,
        can_be_empty=default not in EMPTY and _accepts(info, empty),
    )


def _accepts(info: FieldInfo, value: Any) -> bool:
    declared: Any = Annotated[info.annotation, *info.metadata, "as declared"]
    adapter: TypeAdapter[Any] = TypeAdapter(declared)
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def plain_type(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [part for part in get_args(annotation) if part is not NoneType]
        return plain_type(others[0]) if len(others) == 1 else annotation
    return annotation


def _bounds_of(info: FieldInfo) -> Bounds:
    given: dict[str, Any] = {}
    for rule in info.metadata:
        match rule:
            case Ge(ge=lowest):
                given |= {"lowest": lowest}
            case Gt(gt=lowest):
                given |= {"lowest": lowest, "lowest_excluded": True}
            case Le(le=highest):
                given |= {"highest": highest}
            case Lt(lt=highest):
                given |= {"highest": highest, "highest_excluded": True}
    return Bounds(**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKind:
    kind: str
    label: str = ""
    summary: str = ""
    config_schema: dict[str, Any] | None = None  # Secrets included; None without a usable connector
    secret_settings: list[str] = field(default_factory=list)
    problem: str = ""  # Why sources of this kind cannot be made or used; empty where they can


def engine_kind(kind: str) -> EngineKind:
    try:
        connector = connector_class(kind)
    except Misconfigured as error:
        return EngineKind(kind=kind, problem=error.message)
    return EngineKind(
        kind=kind,
        label=connector.label,
        summary=summary_of(connector),
        config_schema=connector.Config.model_json_schema(),
        secret_settings=[setting.name for setting in settings_of(kind).values() if setting.secret],
    )


def starts_by_metadata(kind: str) -> bool:
    """Whether workflow metadata decides where or how a run starts; True unless the connector denies it."""
    try:
        return bool(getattr(connector_class(kind), "starts_by_metadata", True))
    except Misconfigured:
        return True


def summary_of(connector: type[Connector]) -> str:
    """The first paragraph of the connector's docstring."""
    paragraph, _, _ = (inspect.getdoc(connector) or "").partition("\n\n")
    return " ".join(paragraph.split())
