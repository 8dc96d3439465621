"""The page at an address of this machine, made again whenever a file that it depends on changes.

Every build is a process of its own, so that edited sources, minitvm's too, are read anew; what it complains of is shown
in the page.  Browsers hear of a new page through server-sent events.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from minitvm.errors import ConfigError
from minitvm.target import text_of

SECONDS = 0.3
"""Between two looks at the files."""
_HEARTBEAT = 5.0
_LOCAL = ("127.0.0.1", "localhost")

_NOTHING = '<!doctype html><title>minitvm</title><link rel="icon" href="data:,"><body>building ...'


def own_passes() -> list[Path]:
    """The sources of minitvm's passes."""
    return sorted((Path(__file__).parents[1] / "passes").glob("*.py"))


class Builder:
    """Runs a command with ``-o FILE`` behind it; a page, or what went wrong."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def __call__(self) -> tuple[str, str]:
        """The page and no complaint, or no page and the complaint."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            ended = subprocess.run([*self.command, "-o", str(path)], capture_output=True, text=True, check=False)
            if ended.returncode or not path.is_file():
                return "", ended.stderr.strip() or ended.stdout.strip() or f"exit status {ended.returncode}"
            return path.read_text(encoding="utf-8"), ""


class Server:
    """Shows the last page that there was: ``build`` gives a page and no complaint, or no page and a complaint."""

    def __init__(self, build: Callable[[], tuple[str, str]], watched: Sequence[Path], port: int) -> None:
        self.build = build
        self.watched = list(watched)
        self.page, self.complaint, self.version = "", "", 0
        self.state = "building"
        self.changed = threading.Condition()
        self.ended = threading.Event()
        try:
            self._http = ThreadingHTTPServer((_LOCAL[0], port), self._handler())
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used: {error.strerror}", hint="--port 0 takes a free one"
            ) from error
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self.address = f"http://{_LOCAL[0]}:{self._http.server_port}/"

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        return kind in (KeyboardInterrupt, SystemExit)  # Ctrl-C is how it ends

    def run(self) -> None:
        """Build now and after every change, until :attr:`ended`."""
        known = None
        while not self.ended.is_set():
            now = [_stamp(path) for path in self.watched]
            if now != known:
                known = now
                self.rebuild()
            self.ended.wait(SECONDS)

    def rebuild(self) -> None:
        self._tell("building")
        page, complaint = self.build()
        self.page, self.complaint = page or self.page, complaint
        self._tell("failed" if complaint else "page")

    def _tell(self, state: str) -> None:
        with self.changed:
            self.state, self.version = state, self.version + 1
            self.changed.notify_all()

    def news(self, seen: int) -> tuple[int, str]:
        """The next version after the one that was seen, as an event; a comment where nothing happens for a while."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != seen or self.ended.is_set(), _HEARTBEAT)
            if self.version == seen:
                return seen, ": nothing new\n\n"
            return self.version, f"event: {self.state}\ndata: {json.dumps(self.complaint)}\n\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self
        reload = f'\n<script type="module">{text_of("viewer/assets/reload.js")}</script>\n'

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if (self.headers.get("Host") or "").partition(":")[0] not in _LOCAL:
                    self.send_error(403)
                elif self.path == "/":
                    self._page()
                elif self.path == "/events":
                    self._events()
                else:
                    self.send_error(404)

            def _head(self, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.end_headers()

            def _page(self) -> None:
                self._head("text/html; charset=utf-8")
                self.wfile.write(((server.page or _NOTHING) + reload).encode())

            def _events(self) -> None:
                self._head("text/event-stream")
                seen = server.version - (server.state == "failed" or not server.page)
                try:
                    while not server.ended.is_set():
                        seen, text = server.news(seen)
                        self.wfile.write(text.encode())
                        self.wfile.flush()
                except OSError:
                    pass  # the browser has gone

            def log_message(self, *_: object) -> None: ...

        return Handler


def _stamp(path: Path) -> int:
    """Nanoseconds of the last change; 0 where there is no such file, as while an editor replaces it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
