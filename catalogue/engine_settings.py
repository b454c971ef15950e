"""The settings that a kind of engine asks for, as forms, scripts and commands need to know them."""

from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from connectors.registry import connector_class
from connectors.settings import Hints, hints_of

EMPTY: tuple[Any, ...] = (None, "", [], {})
EMPTY_VALUES: dict[Any, Any] = {str: "", list: [], dict: {}}
"""What a field that is left empty means, unless it takes the default then; None for all other types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One field of a connector's Config."""

    name: str
    title: str
    help: str
    type: Any
    """Without `Annotated` and `| None`."""
    optional: bool
    """None is a value."""
    required: bool
    secret: bool
    default: Any
    """As JSON has it; None where there is none."""
    bounds: "Bounds"
    hints: Hints
    can_be_empty: bool
    """Emptiness is a value of its own, unlike the default, so that it cannot stand for that."""

    @property
    def empty(self) -> Any:
        return EMPTY_VALUES.get(get_origin(self.type) or self.type)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which numbers are allowed."""

    lowest: float | None = None
    lowest_excluded: bool = False
    highest: float | None = None
    highest_excluded: bool = False

    def __str__(self) -> str:
        """`from 1 to 3,600`; empty where there are none."""
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
    secret = plain is SecretStr
    default = None if secret else _default_of(info)
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
        can_be_empty=default not in EMPTY and _accepts(info, EMPTY_VALUES.get(get_origin(plain) or plain)),
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
    """The type that is meant by `Annotated[X, ...]` and `X | None`."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [part for part in get_args(annotation) if part is not NoneType]
        return plain_type(others[0]) if len(others) == 1 else annotation
    return annotation


def _default_of(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True, validated_data={})
    return None if default is PydanticUndefined else to_jsonable_python(default)


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
