"""The settings of a source in Prefect, and requests to its REST API."""

import asyncio
import base64
from collections.abc import Iterable
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from connectors import settings
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Unreachable, backoff_seconds, spread
from connectors.network.client import EngineClient
from connectors.network.policy import normalise_base_url
from connectors.network.transport import HttpLimits
from connectors.settings import FieldProblem, SourceConfig, hint

RESULTS = hint(group="Results and logs")
MOST_ROWS = 200
LISTING_DEPTH = 250  # Above the limit of one schema, so that a deep one does not fail the listing
BUSY_RETRIES = 4
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 2.0
"""Between retries of 503, Prefect's answer while its database is busy; its own clients retry as well."""
INFO, ERROR = 20, 40


class PrefectConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="API URL",
        description="The value of PREFECT_API_URL, such as http://prefect.example.com:4200/api, or "
        "https://api.prefect.cloud/api/accounts/.../workspaces/... for a workspace in Prefect Cloud.",
        json_schema_extra=hint(address=True),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="The API key of Prefect Cloud or of a gateway, sent as a bearer token.",
    )
    auth_string: SecretStr = Field(
        default=SecretStr(""),
        title="Auth string",
        description="user:password, if the server was started with PREFECT_SERVER_API_AUTH_STRING.",
    )
    include_tags: list[str] = Field(
        default=[],
        title="Only with these tags",
        description="Only deployments that have at least one of these tags are listed. Leave empty to list "
        "all.",
    )
    result_artifact_key: str = Field(
        default="catalog-result",
        pattern=r"^[a-z0-9-]+$",
        max_length=255,
        title="Key of the result artifact",
        description="The key of the artifact that holds a run's result. Without it, the result is the "
        "message of the run's final state. Prefect allows lowercase letters, digits and dashes.",
        json_schema_extra=RESULTS,
    )
    log_lines: int = Field(
        default=20,
        ge=0,
        le=200,
        title="Lines of the log",
        description="The number of a run's last log lines to store with its execution. While the run is "
        "active, the newest line is its progress message. Enter 0 to never read logs.",
        json_schema_extra=RESULTS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = Field(
        default=10_000_000,
        description="Larger responses are rejected. A page holds up to 200 deployments.",
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

    @field_validator("auth_string")
    @classmethod
    def _user_and_password(cls, auth: SecretStr) -> SecretStr:
        if (value := auth.get_secret_value().strip()) and ":" not in value:
            raise ValueError("must be user:password")
        return SecretStr(value)

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        if self.api_key.get_secret_value() and self.auth_string.get_secret_value():
            raise FieldProblem("auth_string", "Set either an API key or an auth string, not both.")
        return self


class PrefectApi:
    """Raises only ConnectorError. Every request is safe to repeat."""

    def __init__(self, config: PrefectConfig) -> None:
        key, auth = config.api_key.get_secret_value(), config.auth_string.get_secret_value()
        basic = base64.b64encode(auth.encode()).decode()
        authorization = f"Bearer {key}" if key else f"Basic {basic}" if auth else ""
        self._client = EngineClient(
            base_url=config.base_url,
            headers={"authorization": authorization} if authorization else {},
            secrets=[key, auth, auth.partition(":")[2], basic],
            limits=HttpLimits.within(
                config.request_timeout_seconds, max_response_bytes=config.max_response_bytes
            ),
            verify_tls=config.verify_tls,
            ca_file=config.ca_file,
        )
        self._only_tagged = {"tags": {"any_": config.include_tags}} if config.include_tags else {}

    def __repr__(self) -> str:
        return f"PrefectApi({self._client})"

    async def aclose(self) -> None:
        await self._client.aclose()

    async def version(self) -> str:
        version = await self._ask("GET", "/admin/version")
        return version if isinstance(version, str) else ""

    async def count_deployments(self) -> int:
        count = await self._ask("POST", "/deployments/count", {"deployments": self._only_tagged})
        if not isinstance(count, int):
            raise InvalidAnswer("Prefect's count of deployments is not a number.")
        return count

    async def deployments(self, *, offset: int) -> list[Any]:
        """A page of the server's size; empty after the last."""
        wanted = {"offset": offset, "sort": "CREATED_DESC", "deployments": self._only_tagged}
        return await self._rows("/deployments/filter", wanted)

    async def deployments_by_id(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        rows = await self._rows("/deployments/filter", {"deployments": {"id": {"any_": sorted(ids)}}})
        return _objects(rows)

    async def flow_names(self, ids: Iterable[str]) -> dict[str, str]:
        rows = await self._rows("/flows/filter", {"flows": {"id": {"any_": sorted(ids)}}})
        named = [(row.get("id"), row.get("name")) for row in _objects(rows)]
        return {key: name for key, name in named if isinstance(key, str) and isinstance(name, str)}

    async def create_run(self, deployment_id: str, wanted: dict[str, Any]) -> Any:
        path = f"/deployments/{_id(deployment_id, 'deployment')}/create_flow_run"
        return await self._ask("POST", path, wanted, repeatable=False)

    async def run(self, run_id: str) -> dict[str, Any]:
        answer = _object(await self._ask("GET", f"/flow_runs/{_id(run_id, 'flow run')}"))
        if not isinstance(answer.get("id"), str):
            raise InvalidAnswer("Prefect's answer is not a flow run.")
        return answer

    async def set_state(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        path = f"/flow_runs/{_id(run_id, 'flow run')}/set_state"
        return _object(await self._ask("POST", path, {"state": state, "force": False}))

    async def runs(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        rows = await self._rows("/flow_runs/filter", wanted)
        if not all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in rows):
            raise InvalidAnswer("Prefect's list of flow runs contains something else.")
        return rows

    async def newest_artifact(self, run_id: str, **which: str) -> dict[str, Any] | None:
        """The run's newest artifact with this `key` or `type`."""
        chosen = {name: {"any_": [value]} for name, value in which.items()}
        wanted = {
            "limit": 1,
            "sort": "CREATED_DESC",
            "artifacts": {"flow_run_id": {"any_": [run_id]}, **chosen},
        }
        return next(iter(_objects(await self._rows("/artifacts/filter", wanted))), None)

    async def last_logs(self, run_id: str, *, lines: int, level: int) -> list[dict[str, Any]]:
        """Newest first."""
        logs = {"flow_run_id": {"any_": [run_id]}, "level": {"ge_": level}}
        wanted = {"limit": lines, "sort": "TIMESTAMP_DESC", "logs": logs}
        return _objects(await self._rows("/logs/filter", wanted))

    async def _rows(self, path: str, wanted: dict[str, Any]) -> list[Any]:
        answer = await self._ask("POST", path, wanted)
        if not isinstance(answer, list):
            raise InvalidAnswer(f"Prefect's answer to {path} is not a list.")
        return answer

    async def _ask(self, method: str, path: str, body: Any = None, *, repeatable: bool = True) -> Any:
        for repeated in range(BUSY_RETRIES):
            try:
                return await self._ask_once(method, path, body, repeatable=repeatable)
            except (Unreachable, OutcomeUnknown) as error:
                # If the server says when to retry, the caller waits until then.
                says_when = getattr(error, "retry_after", None) is not None
                if error.details.get("status") != 503 or says_when:
                    raise
            pause = backoff_seconds(repeated, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(spread(pause))
        return await self._ask_once(method, path, body, repeatable=repeatable)

    async def _ask_once(self, method: str, path: str, body: Any, *, repeatable: bool) -> Any:
        return await self._client.request_json(
            method, path, body=body, repeatable=repeatable, max_depth=LISTING_DEPTH, is_listing=True
        )


def _id(text: str, what: str) -> str:
    """Raises NotFound for anything but a UUID, which could change the path."""
    try:
        return str(UUID(text))
    except ValueError:
        raise NotFound(f"{text!r} is not the id of a {what}. Nothing was sent to Prefect.") from None


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise InvalidAnswer("Prefect's answer is not an object.")
    return answer


def _objects(rows: list[Any]) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)]
