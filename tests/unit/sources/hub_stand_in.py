"""A stand-in of Hugging Face's Hub: a small HTTP server that gives files of one repository the way
the Hub does, as far as huggingface_hub asks for them. Large files may break off half-way."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


class Hub:
    """What the server has, and what it was asked for."""

    def __init__(self, repo, files, branches=None):
        self.repo = repo
        self.commits = {COMMIT: files}
        self.branches = branches or {"main": COMMIT}
        self.token = None
        """Needed to get anything, where it is given."""
        self.breaks = {}
        """Bytes after which the connection is lost, once, by file."""
        self.missing = set()
        """Files that it lists and does not give."""
        self.served = []
        """Each file's name, and the byte that it was given from."""
        self.url = ""

    def answer(self, method, path, headers):
        """Status, headers and body."""
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "GatedRepo"}, b""
        if found := re.fullmatch(rf"/api/models/{self.repo}(?:/(revision|tree)/([^/]+))?", path):
            return self._told(found[1], found[2] or "main")
        if found := re.fullmatch(rf"/{self.repo}/resolve/([^/]+)/(.+)", path):
            return self._file(method, found[1], found[2], headers)
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def _told(self, what, revision):
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files = self.commits[commit]
        if what == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in files.items()
            ]
            return 200, {}, json.dumps(entries).encode()
        siblings = [{"rfilename": n, "size": len(d), "blobId": _etag(d)} for n, d in files.items()]
        info = {"id": self.repo, "modelId": self.repo, "sha": commit, "siblings": siblings}
        return 200, {}, json.dumps(info).encode()

    def _file(self, method, revision, name, headers):
        commit = self.branches.get(revision, revision)
        data = self.commits.get(commit, {}).get(name)
        if data is None or name in self.missing:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        about = {"X-Repo-Commit": commit, "ETag": f'"{_etag(data)}"'}
        if method == "HEAD":
            return 200, about | {"Content-Length": str(len(data))}, None
        first = int(re.fullmatch(r"bytes=(\d+)-", headers.get("Range", "bytes=0-"))[1])
        self.served.append((name, first))
        if first:
            about["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        return 206 if first else 200, about, data[first:]


def _etag(data):
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@contextmanager
def serving(hub):
    """The server's address, while it runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = unquote(urlsplit(self.path).path)
            status, about, body = hub.answer(self.command, url, self.headers)
            self.send_response(status)
            if "Content-Length" not in about:
                self.send_header("Content-Length", str(len(body)))
            for name, value in about.items():
                self.send_header(name, value)
            self.end_headers()
            limit = hub.breaks.pop(url.rpartition("/")[2], None) if body else None
            if limit is not None:
                self.close_connection = True
            self.wfile.write((body or b"")[:limit])

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
