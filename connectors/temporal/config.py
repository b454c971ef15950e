"""The configuration of a Temporal source, and the workflows that it declares."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from functools import lru_cache

from pydantic import Field, ValidationInfo, field_validator

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import Misconfigured
from connectors.formats.yaml import MAX_BYTES, UnusableText
from connectors.settings import hint
from connectors.temporal.definitions_file import Declared, name_in_file, read_definitions
from connectors.temporal.settings import ServiceSettings

SUFFIXES = (".yaml", ".yml")
CONNECTION = "temporal"
DEFINITIONS = "definitions"
NO_DEFINITIONS = (
    "without them the source has no workflows; bring a file in with manage.py import_temporal, or with "
    '"Import Temporal file" in the admin'
)


class TemporalConfig(ServiceSettings):
    """Flat, so that each setting is a field of the admin's form."""

    definitions: str = Field(
        default="",
        title="Definitions",
        description="The workflows that the service runs, in YAML. Empty: they are read from the file below.",
        json_schema_extra=hint(multiline=True),
    )
    definitions_file: str = Field(
        default="",
        title="Definitions file",
        description="The absolute path of a .yaml or .yml file on this server, read again at every refresh.",
    )

    @field_validator("definitions")
    @classmethod
    def _readable(cls, definitions: str, info: ValidationInfo) -> str:
        if not definitions.strip():
            return definitions
        connection = _read_text(definitions, info.data.get("default_task_queue", "")).connection
        if connection is not None and connection.secrets:
            # Settings are shown in clear text.
            names = " and ".join(f"temporal.{name_in_file(name)}" for name in connection.secrets)
            raise ValueError(
                f"{names}: a secret; take it out, and enter it in its own field, which is encrypted"
            )
        return definitions


def declares_nothing(config: TemporalConfig) -> bool:
    """Temporal cannot list workflow types, so a source without declarations has no workflows."""
    return not (config.definitions.strip() or config.definitions_file)


async def list_declared(config: TemporalConfig) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
    """Raises Misconfigured with each problem's line and key for unusable definitions."""
    if declares_nothing(config):
        yield RejectedDefinition(position=0, id=DEFINITIONS, name=DEFINITIONS, reason=NO_DEFINITIONS)
        return
    declared = await asyncio.to_thread(read_declared, config)
    for workflow in declared.workflows:
        yield workflow
    connection = declared.connection.settings if declared.connection else {}
    said = config.model_validate(config.model_dump() | connection)
    names = [name for name in connection if getattr(said, name) != getattr(config, name)]
    if differing := ", ".join(map(name_in_file, names)):
        yield RejectedDefinition(
            position=len(declared.workflows),
            id=CONNECTION,
            name=CONNECTION,
            reason=f"The connection in the file differs from the source's settings, which hold: {differing}. "
            "Import the file again to take it over.",
        )


def read_declared(config: TemporalConfig) -> Declared:
    try:
        if config.definitions.strip():
            return _read_text(config.definitions, config.default_task_queue)
        if config.definitions_file:
            content = read_file(config.definitions_file)
            return read_definitions(content, default_task_queue=config.default_task_queue)
    except UnusableText as error:
        what = "The definitions" if config.definitions.strip() else f"The file {config.definitions_file}"
        raise Misconfigured(f"{what} cannot be used: {error}") from None
    return Declared(workflows=[], connection=None, cache=None, entries={})


def read_file(path: str) -> bytes:
    """At most MAX_BYTES + 1 bytes. Raises Misconfigured for an unusable path."""
    if not os.path.isabs(path) or not path.endswith(SUFFIXES):
        raise Misconfigured(f"{path}: has to be a path from / on to a file that ends in .yaml or .yml.")
    try:
        # Without this flag, opening a pipe blocks until it has a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        pass
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{path}: {_reason(error)}.") from None
    raise Misconfigured(f"{path}: no regular file.")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "cannot be opened"


@lru_cache(maxsize=4)
def _read_text(definitions: str, default_task_queue: str) -> Declared:
    return read_definitions(
        definitions.encode("utf-8", "surrogatepass"), default_task_queue=default_task_queue
    )
