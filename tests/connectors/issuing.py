"""An authorization server on the wire, whose every answer a test can change."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.connectors.scripted import Received, response

RESOURCE = "https://catalogue.example/mcp"
METADATA, KEYS, INTROSPECTION = "/.well-known/oauth-authorization-server", "/keys", "/introspect"
OPENID_METADATA = "/.well-known/openid-configuration"


@cache
def private_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Another for each name; making one takes a while."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def public_jwk(name: str, bits: int = 2048, **changes: Any) -> dict[str, Any]:
    public = private_key(name, bits).public_key()
    return RSAAlgorithm.to_jwk(public, as_dict=True) | {"kid": name, "use": "sig"} | changes


@dataclass
class AuthorizationServer:
    """`base_url` is to be set to where `behave` is served."""

    base_url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=lambda: [public_jwk("one")])
    metadata: dict[str, Any] = field(default_factory=dict)  # Besides the usual
    answers: dict[str, Any] = field(default_factory=dict)  # Of other addresses
    introspected: dict[str, Any] = field(default_factory=lambda: {"active": False})
    status: int = 200
    body: str | None = None  # Instead of the answers
    asked: list[Received] = field(default_factory=list)

    async def behave(self, received: Received, writer: asyncio.StreamWriter) -> None:
        self.asked.append(received)
        writer.write(response(self.status, self._answer(received), content_type="application/json"))

    def times(self, path: str) -> int:
        return [received.target for received in self.asked].count(path)

    @property
    def introspected_token(self) -> str:
        return parse_qs(self.asked[-1].body.decode())["token"][0]

    def sign(
        self, key: str = "one", bits: int = 2048, *, headers: Mapping[str, Any] | None = None, **changes: Any
    ) -> str:
        usual = {"iss": self.base_url, "sub": "7", "aud": RESOURCE, "exp": int(time.time()) + 600}
        claims = {name: value for name, value in (usual | changes).items() if value is not None}
        header = {"typ": "at+jwt", "kid": key} | dict(headers or {})
        header = {name: value for name, value in header.items() if value is not None}
        return jwt.encode(claims, private_key(key, bits), algorithm="RS256", headers=header)

    def _answer(self, received: Received) -> str:
        if self.body is not None:
            return self.body
        usual = {
            "issuer": self.base_url,
            "jwks_uri": f"{self.base_url}{KEYS}",
            "introspection_endpoint": f"{self.base_url}{INTROSPECTION}",
        }
        answers = self.answers | {
            METADATA: usual | self.metadata,
            KEYS: {"keys": self.keys},
            INTROSPECTION: self.introspected,
        }
        return json.dumps(answers.get(received.target, {}))
