"""TLS before a server that speaks none: an authority of our own, and a proxy that wants certificates."""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LIFETIME = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Its certificate is `ca`; it issues others."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, host: str = "") -> Certificate:
        """For a server at 127.0.0.1, or one of that host name; clients use it just as well."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(host) if host else x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Certificate(
            self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", private),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=subject, public_key=key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LIFETIME)
            .not_valid_after(now + LIFETIME)
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


@dataclass
class TlsProxy:
    port: int = 0
    clients: list[str] = field(default_factory=list)
    """The names in the certificates of those who were let through."""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def hang_up(self) -> None:
        """End every connection, as a service does that restarts."""
        for writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def tls_proxy(
    upstream_port: int, *, certificate: Certificate, clients_of: Path | None = None
) -> AsyncIterator[TlsProxy]:
    """Lets through who has a certificate of the authority `clients_of`, or everybody."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.set_alpn_protocols(["h2"])
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)
    proxy = TlsProxy()
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while received := await reader.read(65_536):
                writer.write(received)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate_shown = writer.get_extra_info("peercert")
        if certificate_shown:
            proxy.clients.append(dict(part[0] for part in certificate_shown["subject"])["commonName"])
        there, onward = await asyncio.open_connection("127.0.0.1", upstream_port)
        proxy._open.add(onward)
        await asyncio.gather(carry(reader, onward), carry(there, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy._open.add(writer)
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.hang_up()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
