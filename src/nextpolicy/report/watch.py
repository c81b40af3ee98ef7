"""The page served on this machine while runs go on; it is made anew when their files have changed."""

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

HOST = "127.0.0.1"  # never an address that others can reach
NAMES = (HOST, "localhost")  # under which it may be asked for
SILENCE = 10.0  # seconds for which a client may say nothing, or not take its answer, before it is let go
REST = 5  # times as long as making a page took, before the next is made: training needs the machine


class Source:
    """The newest page of some run folders; where they cannot be reported on any more, the last one and why."""

    def __init__(self, paths: Sequence[str], title: str, **allowed: bool) -> None:
        self.paths, self.title, self.allowed = paths, title, allowed
        self.comparison: Comparison | None = None
        self.lock, self.made, self.content, self.rest_until = Lock(), "", "", 0.0

    def version(self) -> str:
        """Changes whenever a file of the runs does; but not while making pages would take too much of the machine."""
        if self.content and time.monotonic() < self.rest_until:
            return self.made
        seen = hashlib.blake2b(digest_size=8)
        try:
            folders = find(self.paths)
        except (ValueError, OSError) as error:  # a folder has gone: pages that are open ask for this version and say so
            folders = []
            seen.update(str(error).encode())
        for folder in folders:
            single = [folder / name for name in ("config.json", "status.json", "evaluation.json")]
            for file in sorted([*single, *(folder / "metrics").glob("part-*")]):
                with contextlib.suppress(FileNotFoundError):
                    stat = file.stat()
                    seen.update(f"{file} {stat.st_size} {stat.st_mtime_ns}".encode())
        return seen.hexdigest()

    def page(self) -> str:
        """The page of now."""
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
            if host not in NAMES:  # a page elsewhere whose name was pointed here must not read this one
                self._answer(403, f"only as {' or '.join(NAMES)}", "text/plain")
            elif self.path.partition("?")[0] == "/":
                self._answer(200, self.source.page(), "text/html")
            elif self.path == "/version":
                self._answer(200, self.source.version(), "text/plain")
            else:
                self._answer(404, "not here", "text/plain")
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
    """A server that is bound and ready; runs that cannot be reported on are said now."""
    source = Source([str(Path(p)) for p in paths], title, **allowed)
    source.page()
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, source))
    except (OSError, OverflowError) as error:
        raise ReportError(f"port: {port} cannot be used ({error}); takes a free one, or 0 for any") from None


def serve(paths: Sequence[str], title: str, port: int, **allowed: bool) -> None:
    """Serve until interrupted."""
    serving = server(paths, title, port, **allowed)
    print(f"report: http://{HOST}:{serving.server_port}/ (ctrl-C ends it)", flush=True)
    with serving:
        serving.serve_forever()
