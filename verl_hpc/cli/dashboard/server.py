"""The dashboard's web server: who may connect, and which addresses it serves.

Everybody who is logged in to this machine can reach a port of its loopback address. Hence the
token: it comes in the address once, and as a cookie from then on. The Host header is also checked,
since a page of another site could point a name of its own at this machine (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from verl_hpc.cli.dashboard.pages import Pages
from verl_hpc.errors import VerlHpcError

LOOPBACK = "127.0.0.1"
_HOSTS = frozenset({LOOPBACK, "localhost", "[::1]"})
_HERE = Path(__file__).parent
_SCRIPT = _HERE / "dashboard.js"
_STYLE = _HERE / "dashboard.css"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Policy for a file that a run has written: it may have its own style, and do nothing."""
_HEADERS: dict[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


@dataclass(frozen=True)
class Answer:
    """A reply to the browser."""

    body: str
    kind: str = "text/html"
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


class Server(ThreadingHTTPServer):
    """Serves one directory of runs."""

    daemon_threads = True

    def __init__(self, pages: Pages, token: str, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.pages = pages
        self.token = token

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Name of the cookie, with the port: cookies are shared between ports, and two dashboards
        may be open."""
        return f"verl_hpc_{self.port}"

    @property
    def address(self) -> str:
        """Address to open, with the token."""
        return f"http://{LOOPBACK}:{self.port}/?{urlencode({'token': self.token})}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless a browser has left before its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def make_server(directory: Path, port: int = 0) -> Server:
    """Return a listening server, with a new token.

    Args:
        directory: where runs are.
        port: port to listen at; 0 for any that is free.

    Raises:
        OSError: the port is taken, or not allowed.
    """
    return Server(Pages(directory), secrets.token_urlsafe(32), port)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "verl_hpc"
    sys_version = ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer a GET request."""
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            self._send(_refusal(HTTPStatus.BAD_REQUEST, f"this is no address: {error}"))
            return
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self._send(self._answer(url.path, query))

    def do_HEAD(self) -> None:
        """Answer a HEAD request: a GET without the body."""
        self.do_GET()

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
        if self._host() not in _HOSTS:
            return _refusal(HTTPStatus.MISDIRECTED_REQUEST, "open it as localhost or 127.0.0.1")
        if "token" in query:
            return self._let_in(path, query)
        if not self._is_known(self._cookie()):
            return _refusal(
                HTTPStatus.FORBIDDEN,
                "open the address that `python -m verl_hpc dashboard` printed, with its token",
            )
        return self._page(path, query)

    def _let_in(self, path: str, query: Mapping[str, str]) -> Answer:
        """Redirect to the address without the token, which would stay in the browser's history."""
        if not self._is_known(query["token"]):
            return _refusal(HTTPStatus.FORBIDDEN, "this token is not that of this dashboard")
        rest = urlencode({name: value for name, value in query.items() if name != "token"})
        # One leading slash: two, or a backslash, would be the name of another host.
        target = "/" + path.lstrip("/\\") + (f"?{rest}" if rest else "")
        cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/"
        headers = (("Location", target), ("Set-Cookie", cookie))
        return Answer("", status=HTTPStatus.SEE_OTHER, headers=headers)

    def _page(self, path: str, query: Mapping[str, str]) -> Answer:
        pages = self.server.pages
        routes: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(pages.overview()),
            "/run": lambda: Answer(pages.run(query.get("name", ""), query.get("steps", ""))),
            "/compare": lambda: Answer(pages.compare(self._chosen_runs())),
            "/samples": lambda: Answer(pages.samples(query.get("name", ""), query.get("step", ""))),
            "/part": lambda: Answer(pages.part(query.get("of", ""), query)),
            "/file": lambda: self._file(query),
            "/dashboard.js": lambda: Answer(_SCRIPT.read_text("utf-8"), "text/javascript"),
            "/dashboard.css": lambda: Answer(pages.style(_STYLE), "text/css"),
        }
        if path not in routes:
            return _refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        try:
            return routes[path]()
        except (LookupError, VerlHpcError) as error:
            return _refusal(HTTPStatus.NOT_FOUND, str(error.args[0]))

    def _chosen_runs(self) -> list[str]:
        """Return the names of the runs whose boxes were checked."""
        return parse_qs(urlsplit(self.path).query).get("run", [])

    def _file(self, query: Mapping[str, str]) -> Answer:
        text, kind = self.server.pages.file(query.get("name", ""), query.get("file", ""))
        return Answer(text, kind, headers=(("Content-Security-Policy", _FILE_POLICY),))

    def _host(self) -> str:
        """Return the host name of the request, without the port, which a tunnel may have
        changed."""
        name, colon, port = self.headers.get("Host", "").rpartition(":")
        return name if colon and port.isdecimal() else f"{name}{colon}{port}"

    def _cookie(self) -> str:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return ""
        cookie = cookies.get(self.server.cookie)
        return cookie.value if cookie is not None else ""

    def _is_known(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.server.token.encode())

    def _send(self, answer: Answer) -> None:
        data = answer.body.encode()
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        fresh = answer.status is not HTTPStatus.OK or self.headers.get("If-None-Match") != tag
        self.send_response(answer.status if fresh else HTTPStatus.NOT_MODIFIED)
        for name, value in (_HEADERS | dict(answer.headers) | {"ETag": tag}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        if fresh:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fresh and self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing: addresses contain tokens."""


def _refusal(status: HTTPStatus, reason: str) -> Answer:
    return Answer(f"{status.value} {status.phrase}: {reason}\n", "text/plain", status)
