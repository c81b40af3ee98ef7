"""Serves the page on this machine and rebuilds it when files of the runs have changed."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from nextpolicy.report import html
from nextpolicy.report.comparable import load_all
from nextpolicy.report.runs import ReportError, find
from nextpolicy.report.tables import Comparison, compare

HOST = "127.0.0.1"  # not reachable from other machines
NAMES = (HOST, "localhost")  # accepted in the Host header
SILENCE = 10.0  # seconds before a client that neither sends nor receives is disconnected
REST = 5  # pause between two builds, in multiples of the time the last took: training needs the machine


class Source:
    """The newest page of some run folders; if they can no longer be reported on, the last page and the reason."""

    def __init__(self, paths: Sequence[str], title: str, **allowed: bool) -> None:
        self.paths, self.title, self.allowed = paths, title, allowed
        self.comparison: Comparison | None = None
        self.lock, self.made, self.content, self.rest_until = Lock(), "", "", 0.0

    def version(self) -> str:
        """A digest that changes with the files of the runs, but not during the pause after a build."""
        if self.content and time.monotonic() < self.rest_until:
            return self.made
        seen = hashlib.blake2b(digest_size=8)
        try:
            folders = find(self.paths)
        except (ValueError, OSError) as error:  # a folder is gone: open pages see a new version and show the reason
            folders = []
            seen.update(str(error).encode())
        for folder in folders:
            single = [folder / name for name in ("config.json", "status.json", "evaluation.json", "statistics.csv")]
            for file in sorted([*single, *(folder / "metrics").glob("part-*")]):
                with contextlib.suppress(FileNotFoundError):
                    stat = file.stat()
                    seen.update(f"{file} {stat.st_size} {stat.st_mtime_ns}".encode())
        return seen.hexdigest()

    def page(self) -> str:
        """The page as of now."""
        with self.lock:
            version = self.version()
            if version != self.made:
                began, problem = time.monotonic(), ""
                try:
                    self.comparison = compare(load_all(self.paths, **self.allowed))
                except (ValueError, OSError) as error:
                    if self.comparison is None:
                        raise
                    problem = str(error)
                self.content = html.page(self.comparison, self.title, watch=version, problem=problem)
                self.made = version
                self.rest_until = time.monotonic() + REST * (time.monotonic() - began)
            return self.content


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENCE

    def __init__(self, source: Source, *arguments: object) -> None:
        self.source = source
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        host = self.headers.get("Host", HOST).partition(":")[0]
        try:
            if host not in NAMES:  # DNS rebinding: another site must not read this page
                self._answer(403, f"expected {' or '.join(NAMES)} as host", "text/plain")
            elif self.path.partition("?")[0] == "/":
                self._answer(200, self.source.page(), "text/html")
            elif self.path == "/version":
                self._answer(200, self.source.version(), "text/plain")
            else:
                self._answer(404, "not found", "text/plain")
        except ConnectionError:
            return  # the window was closed

    def _answer(self, code: int, content: str, kind: str) -> None:
        data = content.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        return


def server(paths: Sequence[str], title: str, port: int, **allowed: bool) -> ThreadingHTTPServer:
    """A bound server; raises ReportError if the runs cannot be reported on or the port cannot be used."""
    source = Source([str(Path(p)) for p in paths], title, **allowed)
    source.page()
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, source))
    except (OSError, OverflowError) as error:
        raise ReportError(f"port: expected a free port, got {port} ({error}); --port 0 picks one") from None


def serve(paths: Sequence[str], title: str, port: int, **allowed: bool) -> None:
    """Serve until interrupted."""
    serving = server(paths, title, port, **allowed)
    print(f"report: http://{HOST}:{serving.server_port}/ (Ctrl-C to stop)", flush=True)
    with serving:
        serving.serve_forever()
