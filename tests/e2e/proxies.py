"""The proxies of deploy/proxy, run as they are but for names, addresses and certificates."""

import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from connectors.testing import free_port
from tests.engines.temporal.tls import Authority
from tests.processes import ROOT, listening

FOLDER = ROOT / "deploy" / "proxy"
NAME = "catalogue.example.com"
NAMES = ("nginx", "caddy")
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/errors.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
CADDY = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"


@dataclass(frozen=True)
class Proxy:
    name: str
    url: str
    trust: ssl.SSLContext
    folder: Path

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))


def needed(name: str) -> str:
    """The program; without it, the test is skipped, with CI=true it fails."""
    if program := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin"):
        return program
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed")
    pytest.skip(f"{name} is not installed")


@contextmanager
def running_proxy(name: str, folder: Path, upstreams: tuple[str, str]) -> Iterator[Proxy]:
    """In front of the two servers, for the length of the block."""
    program, port = needed(name), free_port()
    folder.mkdir()
    authority = Authority(folder)
    certificate = authority.issue("site", host="localhost")
    places = {f"127.0.0.1:800{n}": urlsplit(url).netloc for n, url in enumerate(upstreams)}
    if name == "nginx":
        text = rewritten(
            (FOLDER / "nginx.conf").read_text(),
            places
            | {
                "listen 80;": f"listen 127.0.0.1:{free_port()};",
                "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
                "/etc/nginx/tls/catalogue.crt": str(certificate.certificate),
                "/etc/nginx/tls/catalogue.key": str(certificate.key),
                NAME: "localhost",
            },
        )
        (folder / "site.conf").write_text(text)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
        command = [
            program,
            "-p",
            str(folder),
            "-e",
            f"{folder}/errors.log",
            "-c",
            f"{folder}/nginx.conf",
        ]
    else:
        tls = f"\ttls {certificate.certificate} {certificate.key}\n"
        site = {f"{NAME} {{\n": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n{tls}"}
        text = rewritten((FOLDER / "Caddyfile").read_text(), places | site)
        (folder / "Caddyfile").write_text(CADDY + text)
        command = [program, "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]
    # Caddy keeps what it learns in its user's folders.
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with listening(command, port=port, log=folder / "output.log", environment=home):
        trust = ssl.create_default_context(cafile=str(authority.ca))
        yield Proxy(name, f"https://localhost:{port}", trust, folder)


def rewritten(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        assert old in text, f"The file has no {old!r}"
        text = text.replace(old, new)
    return text
