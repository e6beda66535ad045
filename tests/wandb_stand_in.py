"""A local stand-in for W&B's server, for tests of what `wandb sync` uploads.

It answers the few requests that uploading a run makes, and keeps the runs and their history. It is
no W&B: no accounts, no artifacts, no pages.
"""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_USER = {"id": "VXNlcjox", "entity": "somebody", "username": "somebody", "flags": "{}"}


class _Server(ThreadingHTTPServer):
    def handle_error(self, *words: Any) -> None:
        """Its client leaves without a word when it is done."""


class WandbStandIn:
    """Listens on a free port of this machine while it is entered."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        """Variables of the requests that make or change a run."""
        self.history: list[dict[str, Any]] = []
        """Rows of metrics, in the order in which they arrived."""
        self.asked: list[str] = []
        """For a look at what a new version of W&B asks."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stand_in.asked.append(f"GET {self.path}")
                self._answer({})

            def do_PUT(self) -> None:
                self._body()
                stand_in.asked.append(f"PUT {self.path}")
                self._answer({})

            def do_POST(self) -> None:
                data = self._body()
                stand_in.asked.append(f"POST {self.path} {data[:2000]!r}")
                self._answer(stand_in._post(self.path, data))

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    data = b""
                    while size := int(self.rfile.readline(), 16):
                        data += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_packed = self.headers.get("Content-Encoding") == "gzip"
                return gzip.decompress(data) if is_packed else data

            def _answer(self, tree: Any) -> None:
                data = json.dumps(tree).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: Any) -> None:
                """Quiet."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _post(self, path: str, data: bytes) -> Any:
        if not path.endswith(("/graphql", "/file_stream")):
            return {}  # its traces of itself
        tree = json.loads(data)
        if path.endswith("/graphql"):
            return {"data": self._graphql(tree.get("query", ""), tree.get("variables") or {})}
        lines = tree.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.history += [json.loads(line) for line in lines]
        return {}

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            self.runs.append(variables)
            project = {"name": variables["project"], "entity": {"name": _USER["entity"]}}
            bucket = {
                "id": "UnVuOjE=",
                "name": variables["name"],
                "displayName": variables.get("displayName"),
                "project": {"id": "UHJvamVjdDox", **project},
                "historyLineCount": 0,
            }
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"}
                     for name in variables["files"]]  # fmt: skip
            created = {"runID": "UnVuOjE=", "uploadHeaders": [], "files": files}
            return {"createRunFiles": created}
        if "viewer" in query:
            return {"viewer": _USER | {"teams": {"edges": []}}}
        return {"serverInfo": {"features": []}, "model": None, "project": None, "entity": None}
