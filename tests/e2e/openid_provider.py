"""A real authorization server and OpenID provider that is not ours: npm's certified `oidc-provider`."""

import json
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from connectors.testing import free_port
from tests import plain_http
from tests.e2e.node_tools import FOLDER
from tests.processes import running

AGENT, OPAQUE_AGENT, RESOURCE_SERVER = "an-agent", "opaque-agent", "the-catalogue"
SECRET = "with-signs:/%+-that-are-to-be-quoted"
REDIRECT = "http://127.0.0.1:9/callback"  # Where no server is: the tests read the address
READ_AND_RUN = "workflows:read workflows:run"
TYPE = "at+jwt"


@dataclass(frozen=True)
class SigningKey:
    """Of the provider; the tests have it too, to forge tokens that only one thing is wrong with."""

    id: str
    private: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048), repr=False
    )

    def jwk(self) -> dict[str, Any]:
        jwk = RSAAlgorithm.to_jwk(self.private, as_dict=True)
        del jwk["key_ops"]  # Only `sign`; but the provider verifies the ID tokens that people log out with
        return jwk | {"kid": self.id, "alg": "RS256", "use": "sig"}

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        headers = {"kid": self.id, "typ": TYPE} | header
        return jwt.encode(dict(claims), self.private, algorithm="RS256", headers=headers)


@dataclass
class OpenIdProvider:
    """`started` runs one; a second on the same port is the same issuer, with other keys perhaps."""

    node: Path
    folder: Path
    accounts: dict[str, dict[str, Any]]
    redirects: list[str] = field(default_factory=list)
    after_logout: list[str] = field(default_factory=list)  # Where it sends people who logged out
    port: int = field(default_factory=free_port)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _file(self) -> Path:
        return self.folder / "provider.json"

    def change(self, account: str, **claims: Any) -> None:
        """While it is running."""
        settings = json.loads(self._file.read_text())
        settings["accounts"][account] |= claims
        self._file.write_text(json.dumps(settings))

    @contextmanager
    def running(self, *keys: SigningKey) -> Iterator[None]:
        usual = {
            "client_secret": SECRET,
            "grant_types": ["client_credentials", "authorization_code"],
            "response_types": ["code"],
            "redirect_uris": [REDIRECT, *self.redirects],
            "post_logout_redirect_uris": self.after_logout,
        }
        settings = {
            "issuer": self.issuer,
            "jwks": {"keys": [key.jwk() for key in keys]},
            "clients": [usual | {"client_id": name} for name in (AGENT, OPAQUE_AGENT, RESOURCE_SERVER)],
            "accounts": self.accounts,
        }
        self._file.write_text(json.dumps(settings))
        command = [str(self.node), str(FOLDER / "provider.mjs"), str(self._file)]
        found = f"{self.issuer}/.well-known/openid-configuration"
        with running(command, answers_at=found, log=self.folder / "provider.log"):
            yield

    def token_of(self, account: str, resource: str, scope: str = READ_AND_RUN, *, client: str = AGENT) -> str:
        """Of an agent that a person has let in, as with a browser."""
        verifier = secrets.token_urlsafe(48)
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "client_id": client,
            "response_type": "code",
            "redirect_uri": REDIRECT,
            "scope": f"openid {scope}",
            "resource": resource,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        code = self._let_in(account, asked)
        return self._token(
            client,
            grant_type="authorization_code",
            code=code,
            redirect_uri=REDIRECT,
            code_verifier=verifier,
            resource=resource,
            scope=scope,
        )

    def revoke(self, token: str, *, client: str = AGENT) -> None:
        self._post("/token/revocation", client, token=token)

    def _let_in(self, account: str, asked: Mapping[str, str]) -> str:
        """Log in and consent; the code."""
        with plain_http.Client(base_url=self.issuer, timeout=20) as browser:
            answer = browser.get("/auth", params=asked)
            while True:
                while answer.is_redirect:
                    address = answer.headers["location"]
                    if address.startswith(REDIRECT):
                        return parse_qs(urlsplit(address).query)["code"][0]
                    answer = browser.get(address)
                page = answer.raise_for_status().text
                action = re.search(r'action="([^"]+)"', page)
                assert action, page
                prompt = "login" if 'value="login"' in page else "consent"
                form = {"prompt": prompt, "login": account, "password": "any"}
                answer = browser.post(action[1], data=form)

    def _token(self, client: str, **form: str) -> str:
        return str(self._post("/token", client, **form).json()["access_token"])

    def _post(self, path: str, client: str, **form: str) -> httpx2.Response:
        answer = plain_http.post(
            f"{self.issuer}{path}",
            data=form,
            auth=(client, quote(SECRET, safe="")),
            timeout=20,
        )
        assert answer.is_success, answer.text
        return answer
