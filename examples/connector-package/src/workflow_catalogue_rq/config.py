"""Defines where Redis is, and which functions of the workers' code are workflows."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from connectors.network.policy import address_objection
from connectors.settings import hint

DEFAULT_PORT = 6379


def _functions(described: dict[str, str]) -> dict[str, str]:
    for path, description in described.items():
        if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
            raise ValueError(f"{path} is no path of a function, such as reports.tasks.monthly")
        if not description:
            raise ValueError(f"{path} has no description")
    return described


def _host(text: str) -> str:
    if objection := address_objection(text):
        raise ValueError(f"The host is {text}, {objection}.")
    return text


class RqConfig(BaseModel):
    """The settings of a source of kind rq."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    host: Annotated[str, AfterValidator(_host)] = Field(
        min_length=1, title="Host", description="Where Redis answers.", json_schema_extra=hint(address=True)
    )
    port: int = Field(
        default=DEFAULT_PORT, ge=1, le=65_535, title="Port", json_schema_extra=hint(address=True)
    )
    username: str = Field(default="", title="User", description="Of Redis. Empty: its default user.")
    password: SecretStr = Field(default=SecretStr(""), title="Password", description="Of that user.")
    functions: Annotated[dict[str, str], AfterValidator(_functions)] = Field(
        min_length=1,
        title="Functions",
        description="The functions that workers may run, as reports.tasks.monthly=What it does, for agents. "
        "Nothing else can be started.",
    )
    queue: str = Field(default="default", min_length=1, title="Queue", description="Which workers listen to.")
    timeout_seconds: int = Field(
        default=3600,
        ge=1,
        le=2_592_000,
        title="Longest run (s)",
        description="RQ itself ends a run after this time.",
        json_schema_extra=hint(group="Runs"),
    )
    kept_seconds: int = Field(
        default=604_800,
        ge=3600,
        title="Results are kept (s)",
        description="By Redis, after a run has ended. A start is repeated no later than this.",
        json_schema_extra=hint(group="Runs"),
    )
    database: int = Field(
        default=0, ge=0, title="Database", description="Its number.", json_schema_extra=hint(group="Redis")
    )
    tls: bool = Field(default=False, title="TLS", json_schema_extra=hint(group="Redis", address=True))
    request_timeout_seconds: float = Field(
        default=10.0, gt=0, le=300, title="Request timeout (s)", json_schema_extra=hint(group="Redis")
    )
