"""A server of one page on the loopback interface."""

from __future__ import annotations

import contextlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from starbucks_retrieval.errors import UserError

HOST = "127.0.0.1"


class Server:
    """Serves one HTML page on 127.0.0.1, to this machine only.

    The port is open as soon as the object exists. Requests that name another host are refused: otherwise a web page
    elsewhere could read this one through a name that resolves to 127.0.0.1 (DNS rebinding).

    Args:
        html: The page.
        port: The port; 0 takes any free one.

    Raises:
        UserError: The port is taken or may not be used.
    """

    def __init__(self, html: str, port: int = 0) -> None:
        self._body = html.encode("utf-8")
        try:
            self._http = ThreadingHTTPServer((HOST, port), self._handler())
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise UserError(f"cannot serve on {HOST}:{port}: {reason}", "leave out --port, or name another") from None
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.port}/"

    def run(self) -> None:
        """Answer requests until Ctrl-C or `stop`."""
        with contextlib.suppress(KeyboardInterrupt):
            self._http.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """End `run`, which runs in another thread."""
        self._http.shutdown()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(body=True)

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def _answer(self, body: bool) -> None:
                hosts = {f"{host}:{server.port}" for host in (HOST, "localhost")}
                if self.headers.get("Host") not in hosts:
                    self.send_error(403)
                elif self.path.partition("?")[0] != "/":
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/html; charset=utf-8")
                    self.send_header("Content-Length", str(len(server._body)))
                    self.send_header("Cache-Control", "no-store")
                    self.send_header("X-Content-Type-Options", "nosniff")
                    self.send_header("Referrer-Policy", "no-referrer")
                    self.end_headers()
                    if body:
                        self.wfile.write(server._body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
