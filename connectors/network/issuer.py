"""An external authorization server or OpenID provider: its metadata, keys and tokens."""

import asyncio
import hmac
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import jwt
from loguru import logger
from pydantic import SecretStr

from connectors.errors import ConnectorError, InvalidAnswer, NotFound, Rejected, Unreachable
from connectors.network.client import EngineClient
from connectors.network.policy import check_scheme
from connectors.network.transport import HttpLimits

LIMITS = HttpLimits.within(5.0, max_response_bytes=500_000)
METADATA_SECONDS = 3600.0  # Age at which the metadata is read again
KEYS_SECONDS = 300.0  # The same for the keys: a removed key is refused after this, or once a new one is used
KEPT_SECONDS = 3600.0  # How old both may become while the server cannot be reached
PAUSE_SECONDS = 2.0  # After a failure, before the server is asked again
REFETCH_SECONDS = 10.0  # The shortest time between two reads for an unknown key
LEEWAY_SECONDS = 10  # Between the clocks
MAX_TOKEN_LENGTH = 16_384
KEY_TYPES = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""By algorithm; all others are refused: `none`, and HMAC, for which a public key would be the secret."""
JWT_OPTIONS: Any = {
    "require": ["iss", "sub", "aud", "exp"],
    "enforce_minimum_key_length": True,
    "verify_aud": False,  # Done by `_check_audience`, which can accept more than a list
}
Value = TypeVar("Value")


class TokenRefused(Exception):
    """The message, which is for the log, gives the reason."""


class _CachedValue(Generic[Value]):
    """Caches the value of `fetch`, which one caller at a time fetches again when it is too old."""

    def __init__(self, fetch: Callable[[], Awaitable[Value]], now: Callable[[], float]) -> None:
        self._fetch, self._now = fetch, now
        self._lock = asyncio.Lock()
        self._value: Value | None = None
        self._read_at = self._tried_at = float("-inf")
        self._failure = ""

    async def read(self, *, seconds: float, kept: float) -> Value:
        """A value no older than `seconds`, or than `kept` if the server fails. Raises Unreachable."""
        async with self._lock:
            is_pausing = self._failure and self._now() - self._tried_at < PAUSE_SECONDS
            if self._age() >= seconds and not is_pausing:
                self._tried_at = self._now()
                try:
                    self._value = await self._fetch()
                    self._read_at, self._failure = self._now(), ""
                except ConnectorError as error:
                    self._failure = error.message
                    logger.warning("An authorization server cannot be asked: {}", error.message)
            if self._value is not None and self._age() < (kept if self._failure else seconds):
                return self._value
            raise Unreachable(self._failure, retry_after=PAUSE_SECONDS)

    def _age(self) -> float:
        return self._now() - self._read_at


@dataclass(frozen=True, slots=True)
class _Key:
    id: str | None
    type: str
    algorithm: str | None
    jwk: dict[str, Any] = field(repr=False)

    def fits(self, header: Mapping[str, Any]) -> bool:
        if KEY_TYPES[header["alg"]] != self.type or self.algorithm not in (None, header["alg"]):
            return False
        return "kid" not in header or header["kid"] == self.id


class Issuer:
    """One server, for one event loop; close it with `aclose`. Errors of the server are ConnectorErrors."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str = "",
        client_secret: SecretStr | None = None,
        introspection_url: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client_id`: the product's id at the server, for introspection and logins."""
        self.url = url
        self.client_id = client_id
        self._secret = "" if client_secret is None else client_secret.get_secret_value()
        self._introspection_url = introspection_url
        self._clients: dict[str, EngineClient] = {}  # By origin: keys may be published elsewhere
        self._metadata = _CachedValue(self._fetch_metadata, now)
        self._keys = _CachedValue(self._fetch_keys, now)

    def __repr__(self) -> str:
        return f"Issuer({self.url})"

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def endpoint(self, name: str) -> str:
        """Returns the URL of such as `authorization_endpoint`. Raises InvalidAnswer if there is none."""
        metadata = await self._metadata.read(seconds=METADATA_SECONDS, kept=KEPT_SECONDS)
        return _address(metadata, name)

    async def read_access_token(
        self, text: str, *, audience: Callable[[str], bool], types: Iterable[str]
    ) -> dict[str, Any]:
        """The claims of a JWT by RFC 9068. `types`: what its `typ` may be. Raises TokenRefused."""
        header = _header(text)
        kind = str(header.get("typ", ""))[:50].lower().removeprefix("application/")
        if kind not in {one.lower() for one in types}:
            raise TokenRefused(f"its type is {kind or 'not given'}")
        claims = await self._verify(text, header)
        _check_audience(claims, audience)
        return claims

    async def read_id_token(self, text: str, *, nonce: str) -> dict[str, Any]:
        """The claims of OpenID Connect's token for this client. Raises TokenRefused."""
        claims = await self._verify(text, _header(text))
        others = len(_audiences(claims)) > 1
        _check_audience(claims, lambda one: one == self.client_id)
        if claims.get("azp", None if others else self.client_id) != self.client_id:
            raise TokenRefused("it was made for another client")
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise TokenRefused("it does not belong to this login")
        return claims

    async def introspect(self, text: str, *, audience: Callable[[str], bool]) -> dict[str, Any]:
        """The claims of a token that only the server can read (RFC 7662). Raises TokenRefused."""
        if not text or len(text) > MAX_TOKEN_LENGTH or not (text.isascii() and text.isprintable()):
            raise TokenRefused("it is not a token")
        url = self._introspection_url or await self.endpoint("introspection_endpoint")
        claims = await self._post(url, {"token": text, "token_type_hint": "access_token"})
        if claims.get("active") is not True:
            raise TokenRefused("the authorization server does not know it as active")
        if str(claims.get("token_type", "Bearer")).lower() != "bearer":
            raise TokenRefused("it is not a bearer token")
        # The server has checked the times, but its answer must not contradict them.
        now = time.time()
        ends, begins = claims.get("exp", now), claims.get("nbf", now)
        if not isinstance(ends, int | float) or not isinstance(begins, int | float):
            raise TokenRefused("its times are not numbers")
        if ends <= now - LEEWAY_SECONDS or begins > now + LEEWAY_SECONDS:
            raise TokenRefused("it has expired or is not valid yet")
        if claims.get("iss", self.url) != self.url:
            raise TokenRefused("another server issued it")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise TokenRefused("it names no subject")
        _check_audience(claims, audience)
        return claims

    async def redeem_code(self, code: str, *, verifier: str, redirect_uri: str) -> dict[str, Any]:
        """The answer of the token endpoint to an authorization code with PKCE."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        return await self._post(await self.endpoint("token_endpoint"), form)

    async def read_user(self, access_token: str) -> dict[str, Any]:
        """The claims of OpenID Connect's userinfo endpoint; none if the server has no such endpoint."""
        metadata = await self._metadata.read(seconds=METADATA_SECONDS, kept=KEPT_SECONDS)
        if "userinfo_endpoint" not in metadata:
            return {}
        url = _address(metadata, "userinfo_endpoint")
        headers = {"authorization": f"Bearer {access_token}"}
        client = self._client(url)
        return _object(await client.request_json("GET", url, headers=headers, secrets=[access_token]))

    async def _verify(self, text: str, header: dict[str, Any]) -> dict[str, Any]:
        """Reads the keys again, though not often, if no known key has signed the token."""
        for seconds, kept in ((KEYS_SECONDS, KEPT_SECONDS), (REFETCH_SECONDS, REFETCH_SECONDS)):
            for key in await self._keys.read(seconds=seconds, kept=kept):
                if key.fits(header) and (claims := self._claims(text, key, header["alg"])) is not None:
                    if "cnf" in claims:
                        raise TokenRefused("it is bound to a key, and proof of possession is not supported")
                    return claims
        raise TokenRefused("no key of its server has signed it")

    def _claims(self, text: str, key: _Key, algorithm: str) -> dict[str, Any] | None:
        """None if another key has signed it. Raises TokenRefused."""
        try:
            return jwt.decode(
                text,
                jwt.PyJWK(key.jwk, algorithm),
                algorithms=[algorithm],
                issuer=self.url,
                leeway=LEEWAY_SECONDS,
                options=JWT_OPTIONS,
            )
        except jwt.InvalidSignatureError:
            return None
        except (jwt.PyJWTError, ValueError, OverflowError) as error:
            raise TokenRefused(str(error)[:200]) from None

    async def _post(self, url: str, form: dict[str, str]) -> dict[str, Any]:
        headers = {}
        if not self._secret:
            form = form | {"client_id": self.client_id}
        else:
            metadata = await self._metadata.read(seconds=METADATA_SECONDS, kept=KEPT_SECONDS)
            methods = metadata.get("token_endpoint_auth_methods_supported")
            known = methods if isinstance(methods, list) else ["client_secret_basic"]
            if "client_secret_basic" not in known and "client_secret_post" in known:
                form = form | {"client_id": self.client_id, "client_secret": self._secret}
            else:
                pair = f"{quote(self.client_id, safe='')}:{quote(self._secret, safe='')}"
                headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        secrets = [form[name] for name in ("token", "code", "code_verifier") if name in form]
        secrets += [value.partition(" ")[2] for value in headers.values()]
        client = self._client(url)
        return _object(await client.request_json("POST", url, form=form, headers=headers, secrets=secrets))

    async def _fetch_metadata(self) -> dict[str, Any]:
        """Reads both kinds, because many servers name `userinfo_endpoint` and `end_session_endpoint` only in
        the metadata of OpenID Connect."""
        # RFC 8414, 3.1 and 5, and OpenID Connect Discovery, 4.1.
        parts = urlsplit(self.url)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        oauth = [f"{origin}/.well-known/oauth-authorization-server{path}"]
        openid = [f"{origin}/.well-known/openid-configuration{path}"]
        if path:
            openid.append(f"{origin}{path}/.well-known/openid-configuration")
        found: dict[str, Any] = {}
        problem: ConnectorError | None = None
        for urls in (oauth, openid):
            for url in urls:
                try:
                    metadata = _object(await self._client(url).request_json("GET", url))
                    if metadata.get("issuer") != self.url:
                        named = str(metadata.get("issuer"))[:200]
                        raise InvalidAnswer(f"The metadata of {self.url} belongs to the issuer {named!r}.")
                    found = metadata | found
                    break
                except (NotFound, Rejected, InvalidAnswer) as error:
                    problem = error
        if problem is not None and not found:
            raise problem
        return found

    async def _fetch_keys(self) -> list[_Key]:
        url = await self.endpoint("jwks_uri")
        found = _object(await self._client(url).request_json("GET", url)).get("keys")
        if not isinstance(found, list):
            raise InvalidAnswer(f"{url} returned no keys.")
        # Public keys for signatures; symmetric keys must not be published, so they are ignored.
        return [
            _Key(jwk.get("kid"), jwk["kty"], jwk.get("alg"), jwk)
            for jwk in found[:50]
            if isinstance(jwk, dict)
            and jwk.get("kty") in KEY_TYPES.values()
            and jwk.get("use", "sig") == "sig"
            and jwk.get("alg", "RS256") in KEY_TYPES
        ]

    def _client(self, url: str) -> EngineClient:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._clients:
            secrets = [self._secret] if self._secret else []
            self._clients[origin] = EngineClient(base_url=origin, secrets=secrets, limits=LIMITS)
        return self._clients[origin]


def _header(text: str) -> dict[str, Any]:
    if len(text) > MAX_TOKEN_LENGTH:
        raise TokenRefused("it is too long")
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError):
        raise TokenRefused("it is not a JWT") from None
    if header.get("alg") not in KEY_TYPES:
        raise TokenRefused("its algorithm is not accepted")
    return header


def _audiences(claims: Mapping[str, Any]) -> list[str]:
    named = claims.get("aud")
    listed = named if isinstance(named, list) else [named]
    return [one for one in listed if isinstance(one, str)]


def _check_audience(claims: dict[str, Any], accepts: Callable[[str], bool]) -> None:
    """Leaves only the accepted audiences."""
    accepted = [one for one in _audiences(claims) if accepts(one)]
    if not accepted:
        raise TokenRefused("it was made for another audience")
    claims["aud"] = accepted


def _address(metadata: Mapping[str, Any], name: str) -> str:
    url = metadata.get(name)
    if not isinstance(url, str):
        raise InvalidAnswer(f"The metadata of {metadata['issuer']} has no {name}.")
    try:
        return check_scheme(url)
    except ValueError as error:
        raise InvalidAnswer(f"The metadata of {metadata['issuer']}: {name} {error}.") from None


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise InvalidAnswer("An authorization server's answer is not a JSON object.")
    return answer
