"""The file's block `temporal` as settings of a source."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr, ValidationError

from connectors.formats.yaml import Path
from connectors.temporal.config import TemporalConfig
from connectors.temporal.declarations import TemporalBlock, keys_of
from connectors.temporal.problems import message_of
from connectors.temporal.schemas import Note

PLACES: dict[str, Path] = {
    "host_port": ("hostPort",),
    "namespace": ("namespace",),
    "environment": ("environment",),
    "timeout_seconds": ("timeout",),
    "retry_initial_seconds": ("retryOptions", "initialInterval"),
    "retry_maximum_seconds": ("retryOptions", "maximumInterval"),
    "retry_maximum_attempts": ("retryOptions", "maximumAttempts"),
    "retry_backoff": ("retryOptions", "backoffCoefficient"),
    "oauth_client_id": ("auth", "clientID"),
    "oauth_client_secret": ("auth", "clientSecret"),
    "oauth_audience": ("auth", "audience"),
    "oauth_scope": ("auth", "scope"),
    "oauth_url": ("auth", "oauth2URL"),
    "api_key": ("auth", "apiKey"),
    "tls_cert_file": ("tls", "certPath"),
    "tls_key_file": ("tls", "keyPath"),
    "tls_ca_file": ("tls", "caPath"),
    "tls_server_name": ("tls", "serverName"),
    "tls_insecure_skip_verify": ("tls", "insecureSkipVerify"),
}
"""Where the block says what a setting of the source is."""
STORED_APART = "stored apart"
"""Stands for a secret that the file leaves out, while the rest of the connection is checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredConnection:
    """Settings of a source, as far as a block says them."""

    settings: dict[str, Any]
    """Without secrets."""
    secrets: dict[str, str] = field(repr=False)


def read_connection(block: TemporalBlock, *, note: Note) -> DeclaredConnection:
    """Notes what no source could be set to."""
    said = dict(_said(block))
    secrets = {name: value.get_secret_value() for name, value in said.items() if isinstance(value, SecretStr)}
    settings = {name: value for name, value in said.items() if name not in secrets}
    assumed = {"oauth_client_secret": STORED_APART} if "oauth_url" in said else {}
    try:
        TemporalConfig.model_validate(assumed | settings | secrets)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            place = PLACES[str(one["loc"][0])] if one["loc"] else ()
            note(("temporal", *place), message_of(one))
    return DeclaredConnection(settings=settings, secrets=secrets)


def name_in_file(setting: str) -> str:
    """`retryOptions.maximumAttempts` for `retry_maximum_attempts`."""
    return ".".join(map(str, PLACES[setting]))


def setting_named(name: str) -> str:
    """The setting that the file calls `clientSecret` or `auth.clientSecret`; every other name is its own."""
    return next((ours for ours, place in PLACES.items() if name in (place[-1], name_in_file(ours))), name)


def _said(block: TemporalBlock) -> Iterator[tuple[str, Any]]:
    for name, place in PLACES.items():
        value: Any = block
        for key in place:
            value = None if value is None else _of_key(value, key)
        if value is not None:
            yield name, value


def _of_key(block: Any, key: str | int) -> Any:
    return getattr(block, next(name for name, alias in keys_of(type(block)).items() if alias == key))
