"""An MCP server over standard input and output that answers with the very bytes that a test gives: for each
method a line, or several, in hexadecimal digits, where ID stands for the request's id."""

import json
import sys

INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}


def main() -> None:
    answers = {method: bytes.fromhex(digits) for method, digits in json.loads(sys.argv[1]).items()}
    usual = json.dumps({"jsonrpc": "2.0", "id": "ID", "result": INITIALIZED}).replace('"ID"', "ID")
    unknown = {"jsonrpc": "2.0", "id": "ID", "error": {"code": -32601, "message": "Method not found"}}
    answers.setdefault("initialize", usual.encode())
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            otherwise = json.dumps(unknown).replace('"ID"', "ID").encode()
            lines = answers.get(message["method"], otherwise)
            sys.stdout.buffer.write(lines.replace(b"ID", json.dumps(message["id"]).encode()) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
