from string import Formatter
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from connectors import settings
from connectors.network.policy import normalise_base_url
from connectors.settings import SourceConfig, hint

WORKFLOWS_PATH = "/api/v1/service/workflows"
USUAL_KEY_HEADER = "Idempotency-Key"
RUN_PATH = WORKFLOWS_PATH + "/{workflow_id}/runs/{run_id}"
FORMATS = hint(group="Paths and formats")
STARTS = hint(group="What the engine promises of starts")


def _path(required: str = "", *, optional: bool = False) -> AfterValidator:
    """A path below the base URL, without placeholders or with the required one and perhaps {workflow_id}."""
    allowed = {required, "workflow_id"} if required else set()

    def check(path: str) -> str:
        if optional and not path:
            return path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError("must start with '/' and contain neither spaces nor characters outside ASCII")
        found = _placeholders(path)
        if required and required not in found:
            raise ValueError(f"must contain {{{required}}}")
        if unknown := found - allowed:
            raise ValueError(f"must not contain {{{min(unknown)}}}")
        return path

    return AfterValidator(check)


def _placeholders(path: str) -> set[str]:
    try:
        found = [part for part in Formatter().parse(path) if part[1] is not None]
    except ValueError:
        raise ValueError("has a brace without its partner") from None
    if any(form or conversion for _, _, form, conversion in found):
        raise ValueError("must have nothing but a name between braces")
    return {str(name) for _, name, _, _ in found}


def _http_word(text: str) -> str:
    if not all(char.isascii() and (char.isalnum() or char in "-_.") for char in text):
        raise ValueError("may contain letters, digits, '-', '_' and '.' only")
    return text


def _header_for_a_key(name: str) -> str:
    # Imported here, because it loads the modules of the HTTP tools.
    from connectors.network.headers import objection_to_name

    if name and (why := objection_to_name(name)):
        raise ValueError(f"{name} {why}")
    return name


HttpWord = Annotated[str, AfterValidator(_http_word)]
KeyHeader = Annotated[HttpWord, AfterValidator(_header_for_a_key)]


class SimplifiedConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Base URL",
        description="Where the engine answers, such as https://engine.example.com; a path prefix may follow.",
        json_schema_extra=hint(address=True),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="Sent with every request in the Authorization header. Empty: the header is left out.",
    )
    authorization_scheme: HttpWord = Field(
        default="Api-Key",
        title="Authorization scheme",
        description="The word before the key in the Authorization header. Empty: the key stands alone.",
        json_schema_extra=FORMATS,
    )
    list_path: Annotated[str, _path()] = Field(
        default=WORKFLOWS_PATH,
        title="Listing path",
        description="Answers GET with the engine's workflows.",
        json_schema_extra=FORMATS,
    )
    start_path: Annotated[str, _path("workflow_id")] = Field(
        default=WORKFLOWS_PATH + "/{workflow_id}/start",
        title="Start path",
        description="Answers POST with a new run; must contain {workflow_id}.",
        json_schema_extra=FORMATS,
    )
    status_path: Annotated[str, _path("run_id", optional=True)] = Field(
        default=RUN_PATH + "/status",
        title="Status path",
        description="Answers GET with a run's status; must contain {run_id}, may contain {workflow_id}. "
        "Empty: the engine does not report on runs; one that has not ended when its start is answered "
        "becomes unconfirmed.",
        json_schema_extra=FORMATS,
    )
    cancel_path: Annotated[str, _path("run_id", optional=True)] = Field(
        default=RUN_PATH + "/cancel",
        title="Cancel path",
        description="POST there cancels a run; must contain {run_id}. Empty: the engine cannot cancel.",
        json_schema_extra=FORMATS,
    )
    list_keys: list[str] = Field(
        default=["workflows", "items", "data", "results"],
        min_length=1,
        title="Listing keys",
        description="Under which of these keys the listing has its array, unless the answer itself is one.",
        json_schema_extra=FORMATS,
    )
    cursor_parameter: HttpWord = Field(
        default="cursor",
        min_length=1,
        title="Cursor parameter",
        description="Query parameter for the next page, where the engine gives a cursor and not a link.",
        json_schema_extra=FORMATS,
    )
    source: str = Field(
        default="application",
        min_length=1,
        max_length=100,
        title="Source",
        description="Sent with each start as the caller's name.",
        json_schema_extra=FORMATS,
    )
    idempotency_header: KeyHeader = Field(
        default="",
        title="Idempotency header",
        description="Fill in (for example Idempotency-Key) only if the engine starts a single run however "
        "often it gets the same key. Empty: a start of unknown outcome is never repeated.",
        json_schema_extra=STARTS,
    )
    run_lookup_path: Annotated[str, _path("key", optional=True)] = Field(
        default="",
        title="Run lookup path",
        description="Answers GET with the run, or the list of runs, that was started with a key, such as "
        "/runs?workflow_id={workflow_id}&idempotency_key={key}; an empty list or 404 says that there is "
        "none. Must contain {key}. Starts of unknown outcome are then looked up there. Empty: the engine "
        "has no such lookup.",
        json_schema_extra=STARTS,
    )
    key_header: KeyHeader = Field(
        default="",
        title="Key header of the lookup",
        description="In which header a start carries the key that the lookup asks for, where no idempotency "
        "header is set. Empty: Idempotency-Key. Not sent without a run lookup path.",
        json_schema_extra=STARTS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = Field(
        default=30.0,
        description="For one whole request; a synchronous workflow has to finish within it.",
    )
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""
