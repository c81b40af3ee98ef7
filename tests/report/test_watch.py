"""What `report --watch` serves, to whom, and how often it rebuilds."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from nextpolicy.report import watch

from .synthetic import complaint, report, write_run


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", "brax/ant", seeds=2)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


@pytest.fixture
def serving(run, monkeypatch):
    monkeypatch.setattr(watch, "REST", 0)
    server = watch.server([str(run)], "now", 0, allow_mixed=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_watching_serves_the_page_of_now_on_this_machine_only(run, serving):
    assert serving.server_address[0] == "127.0.0.1"
    base = f"http://127.0.0.1:{serving.server_port}"
    version = get(f"{base}/version")
    assert f'"watch":"{version}"' in get(f"{base}/")
    assert b"Cache-Control: no-store" in raw(serving.server_port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    (run / "status.json").write_text('{"state": "failed", "reason": "the cat"}')
    assert get(f"{base}/version") != version
    assert "the cat" in get(f"{base}/?again")
    part = sorted((run / "metrics").iterdir())[0]
    part.write_bytes(b"PAR1")  # the page there was stays, and says why
    page = get(f"{base}/")
    assert "the cat" in page
    assert part.name in page.partition("<header>")[0]
    assert f'"watch":"{get(f"{base}/version")}"' in page, "the page would load itself again and again"


def raw(port: int, request: bytes) -> bytes:
    """The answer to a request as it stands: a client would tidy its path first."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_watching_gives_nothing_but_the_page(serving):
    for path in ("/etc/passwd", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/config.json", "/config.json", "*"):
        answer = raw(serving.server_port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.0 404"), path
        assert answer.endswith(b"\r\n\r\nnot found"), path


def test_watching_answers_under_the_names_of_this_machine_only(serving):
    ask = lambda host: raw(serving.server_port, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())  # noqa: E731
    assert ask("localhost:1").startswith(b"HTTP/1.0 200")
    assert ask("elsewhere.example").startswith(b"HTTP/1.0 403")
    assert b"brax" not in ask("elsewhere.example")


def test_a_window_that_closes_early_is_no_error(serving, capsys):
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", serving.server_port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.close()  # with a reset
    assert "<html" in get(f"http://127.0.0.1:{serving.server_port}/")
    assert capsys.readouterr().err == ""


def test_a_run_that_vanishes_while_watched_is_said(run, serving):
    shutil.rmtree(run)
    page = get(f"http://127.0.0.1:{serving.server_port}/")
    assert f"This page is out of date. report: expected a folder, got {run}</p>" in page
    assert '<section id="bars">' in page  # the last page there was


def test_pages_are_not_made_faster_than_the_machine_can_bear(run, monkeypatch):
    source = watch.Source([str(run)], "now", allow_mixed=False)
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    made = []

    def page(*arguments, watch, problem):
        made.append(watch)
        now[0] += 2.0  # seconds that it takes
        return f"page {len(made)}"

    monkeypatch.setattr(watch.html, "page", page)
    assert source.page() == "page 1"
    (run / "status.json").write_text('{"state": "failed"}')
    now[0] += 2.0 * watch.REST - 0.1
    assert (source.page(), source.version()) == ("page 1", made[0])
    now[0] += 0.2
    assert source.page() == "page 2"


def test_watching_says_where_until_it_is_interrupted(run, capsys, monkeypatch):
    def interrupt(server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.ThreadingHTTPServer, "serve_forever", interrupt)
    assert report(run, "--watch", "--port", "0") == 130
    assert re.fullmatch(r"report: http://127\.0\.0\.1:\d+/ \(Ctrl-C to stop\)\n", capsys.readouterr().out)


def test_watching_an_empty_folder_or_a_taken_port(tmp_path, run, capsys):
    (tmp_path / "empty").mkdir()
    assert report(tmp_path / "empty", "--watch") == 2
    assert "expected a run, got" in complaint(capsys)
    with watch.server([str(run)], "now", 0, allow_mixed=False) as serving:
        assert report(run, "--watch", "--port", str(serving.server_port)) == 2
    assert "port: expected a free port, got" in complaint(capsys)


def test_a_client_that_says_nothing_is_let_go(serving, monkeypatch):
    assert 1 <= watch._Handler.timeout <= 60
    monkeypatch.setattr(watch._Handler, "timeout", 0.3)
    for half in (b"", b"GET / HTTP/1.1\r\nHo"):
        with socket.create_connection(("127.0.0.1", serving.server_port), timeout=20) as silent:
            silent.sendall(half)
            assert silent.recv(1) == b"", "the server must close the connection"
    assert "<html" in get(f"http://127.0.0.1:{serving.server_port}/")


def test_a_client_that_does_not_take_its_answer_is_let_go(run, serving, monkeypatch, capsys):
    assert watch._Handler.timeout is not None
    monkeypatch.setattr(watch._Handler, "timeout", 0.3)
    monkeypatch.setattr(watch.Source, "page", lambda source: "x" * 50_000_000)  # more than any buffer takes
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", serving.server_port), timeout=20) as greedy:
        greedy.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert greedy.recv(4) == b"HTTP"
        until = time.monotonic() + 20
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() == before
    assert capsys.readouterr().err == ""
