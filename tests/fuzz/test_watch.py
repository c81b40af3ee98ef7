"""Requests by the thousand to the watch server, and Parquet files with damaged metadata: no traceback, no hang."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.synthetic import write_run

from nextpolicy import runfiles
from nextpolicy.report import watch
from nextpolicy.report.runs import ReportError, load

from .requests import requests

SECRET = b"nobody may read this"
SECONDS = 20.0  # for an answer; most take milliseconds


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    (tmp_path / "secret.txt").write_bytes(SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch._Handler, "timeout", 1.0)
    server = watch.server([str(write_run(tmp_path / "run", "brax/ant", seeds=2))], "now", 0, allow_mixed=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, request: bytes) -> bytes:
    """What the server answers until it closes the connection; nothing more is sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except TimeoutError:
            raise
        except OSError:  # closed while we were still sending
            return b""


@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_odd_requests_are_answered(port: int, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    served = 0
    for request in requests(4, count):
        answer = ask(port, request)  # a hang is a timeout, which fails the test
        assert SECRET not in answer, request[:300]
        assert b"root:" not in answer, request[:300]
        served += answer.startswith(b"HTTP/1.0 200")
    assert served > count / 50, "most requests never came to the page"
    assert ask(port, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.0 200")
    assert capsys.readouterr().err == ""


def test_connections_that_are_left_open_do_not_block_others(port: int) -> None:
    left = [socket.create_connection(("127.0.0.1", port), timeout=SECONDS) for _ in range(4)]
    try:
        for number, connection in enumerate(left):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: local"[: 8 * number])
        assert ask(port, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.0 200")
    finally:
        for connection in left:
            connection.close()


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.slow)])
def test_damaged_parquet_metadata_is_one_line(tmp_path: Path, count: int) -> None:
    """The footer of a part that no manifest records: it is read as it is, or refused in one line."""
    run = write_run(tmp_path / "run", "brax/ant", seeds=2)
    (path, *_) = sorted(p for _, _, p in runfiles.parts(run / "metrics"))
    good, rng, refused = path.read_bytes(), random.Random(5), 0
    footer = int.from_bytes(good[-8:-4], "little") + 8
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[-rng.randint(1, footer)] = rng.randrange(256)
        path.write_bytes(bytes(data))
        said = refusal(run)
        refused += bool(said)
        assert len(said.splitlines()) <= 1
    assert refused > count / 2


def refusal(run: Path) -> str:
    """Why the run cannot be reported on; empty if it can."""
    try:
        load(run)
    except ReportError as error:
        return str(error)
    return ""
