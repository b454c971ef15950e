"""Twenty connections that guess, each as fast as it is answered, until the process is ended."""

import asyncio
import itertools
import json
import secrets
import sys
from urllib.parse import urlencode, urlsplit

CSRF = "c" * 32
numbers = itertools.count()


def sign_in(host: str) -> bytes:
    given = {
        "csrfmiddlewaretoken": CSRF,
        "username": f"admin{next(numbers) % 7}",
        "password": secrets.token_hex(8),
    }
    body = urlencode(given).encode()
    head = (
        f"POST /admin/login/ HTTP/1.1\r\nhost: {host}\r\ncookie: csrftoken={CSRF}\r\n"
        f"content-type: application/x-www-form-urlencoded\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode() + b"%s\r\n" + body


def wrong_token(host: str) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer wfc_{secrets.token_urlsafe(32)}\r\n"
        "accept: application/json, text/event-stream\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode() + b"%s\r\n" + body


def look(host: str) -> bytes:
    return f"GET /admin/login/ HTTP/1.1\r\nhost: {host}\r\n".encode() + b"%s\r\n"


KINDS = {"sign-in": sign_in, "token": wrong_token, "page": look}


async def attack(url: str, kind: str, address: str) -> None:
    parts = urlsplit(url)
    origin = f"x-forwarded-for: {address}\r\n".encode() if address else b""
    while True:
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            while True:
                writer.write(KINDS[kind](parts.netloc).replace(b"%s\r\n", origin + b"\r\n", 1))
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                print(head[9:12].decode(), flush=True)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)


async def main(url: str, kind: str, number: int, addresses: int) -> None:
    where = [f"203.0.113.{n % addresses + 1}" if addresses else "" for n in range(number)]
    await asyncio.gather(*(attack(url, kind, address) for address in where))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
