"""The command `starbucks browse`, and the server of its page."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from starbucks_retrieval.browse import BrowseArguments, browse
from starbucks_retrieval.cli import exit_command, finish, flag, parse_command
from starbucks_retrieval.errors import UserError

HOST = "127.0.0.1"
_EXAMPLES = (
    "starbucks browse small.trec big.trec --corpus scifact",
    "starbucks browse run.trec --corpus corpus.jsonl --queries queries.tsv --qrels qrels.txt --serve",
)


@dataclass
class PageArguments:
    """Output"""

    output: str | None = flag(None, "file to write (default: browse.html, unless --serve)")
    serve: bool = flag(False, "serve the page on 127.0.0.1 until interrupted")
    port: int = flag(0, "with --serve: the port (default: any free one)", rare=True)
    title: str | None = flag(None, "title of the page")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, write or serve the page, print where it is."""
    shown, page, common = parse_command(
        [BrowseArguments, PageArguments],
        _add_run_flag(argv),
        "starbucks browse",
        "A page of queries and what each run found for them, side by side.",
        _EXAMPLES,
    )
    output = page.output or (None if page.serve else "browse.html")
    done = browse(shown, output, page.title, common.seed)
    hint = f"; open {done.output}" if done.output else ""
    if not page.serve:
        finish(common, done.summary() + hint, done.figures)
        return
    with Server(done.html, page.port) as server:
        finish(
            common, f"{done.summary()}{hint}; served until interrupted (Ctrl-C) at", done.figures | {"url": server.url}
        )
        if not common.json:
            print(server.url, flush=True)
        server.run()


def _add_run_flag(argv: Sequence[str]) -> list[str]:
    """Return the arguments with --run before leading run files; a configuration file stays first."""
    first_flag = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    words, rest = list(argv[:first_flag]), list(argv[first_flag:])
    config = [words.pop(0)] if words and words[0].endswith((".yaml", ".yml", ".json")) else []
    return [*config, *(["--run", *words] if words else []), *rest]


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
                    if self.command == "GET":
                        self.wfile.write(server._body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


if __name__ == "__main__":
    exit_command(main)
