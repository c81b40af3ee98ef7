"""What the command writes, what it refuses, and what it serves."""

from __future__ import annotations

import json
import re
import shutil
import socket
import struct
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.report import curves, files, watch
from nextpolicy.report.comparable import load_all
from nextpolicy.report.tables import compare
from nextpolicy.run import cli

from .synthetic import lively, write_run


def report(*arguments: str | Path) -> int:
    return cli.main(["report", *map(str, arguments)])


def complaint(capsys) -> str:
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return said


def test_page_tables_and_figures(tmp_path, capsys):
    for i, env in enumerate(("brax/ant", "brax/reacher")):
        write_run(tmp_path / "runs" / env[5:], env, columns=lively(i, (50.0, -50.0)[i]), rounds=40)
    assert report(tmp_path / "runs", "--out", tmp_path / "report.html") == 0
    assert "page:" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    names = {p.name for p in (tmp_path / "report-files").iterdir()}
    for stem in ("aggregate", "brax-sv-static", "brax-sv-dynamic"):
        assert {f"{stem}.md", f"{stem}.csv", f"{stem}.tex"} <= names
    for stem in ("bars", "learning-curves", "diff", "lifespan", "scatter"):
        assert {f"brax-{stem}.svg", f"brax-{stem}.png"} <= names
        assert (tmp_path / "report-files" / f"brax-{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "report-files" / "members.csv")) == 18
    assert not [n for n in names if n.endswith(".tmp")]


def test_value_loss_and_entropy_over_all_rounds_and_at_convergence(tmp_path):
    """The paper prints them at convergence: the last 10 % of steps, 2 of 20 rounds."""
    late = {"ppo": 1.0, "sv-static": 2.0, "sv-dynamic": 4.0}
    fall = lambda algo, seed, k: np.where(k >= 18, late[algo], 0.5)  # noqa: E731
    write_run(tmp_path / "runs", "brax/ant", columns={"value_loss": fall, "entropy": fall}, seeds=2)
    assert report(tmp_path / "runs", "--out", tmp_path / "r.html") == 0
    (row,) = pd.read_csv(tmp_path / "r-files" / "brax-sv-static.csv").to_dict("records")
    for name in ("value_loss", "entropy"):
        assert row[f"{name}_x_ppo"] == pytest.approx((18 * 0.5 + 2 * 2) / (18 * 0.5 + 2 * 1))
        assert row[f"{name}_late_x_ppo"] == 2.0
    assert (row["paper_value_loss_x_ppo"], row["value_loss_difference_from_paper"]) == (1.23, pytest.approx(0.77))
    assert (row["paper_ppo_entropy"], row["ppo_entropy_difference_from_paper"]) == (-0.07, pytest.approx(1.07))
    page = (tmp_path / "r.html").read_text()
    for heading in ("Value loss", "Entropy"):
        for which in ("all rounds", "last 10 %"):
            assert f'<button type="button">{heading}, {which}, × PPO</button>' in page


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", "brax/ant", seeds=2)


def test_an_empty_folder(tmp_path, capsys):
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    assert f"report: expected a run, got {tmp_path} (no config.json" in complaint(capsys)
    assert report(tmp_path / "nowhere", "--out", tmp_path / "r.html") == 2
    assert f"report: expected a folder, got {tmp_path / 'nowhere'}" in complaint(capsys)
    assert not (tmp_path / "r.html").exists()


def test_a_half_written_part(run, capsys):
    part = sorted((run / "metrics").iterdir())[1]
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    assert report(run, "--out", run.parent / "r.html") == 2
    assert f"metrics of rounds 10 to 19 are damaged ({part.name} cannot be read); `nextpolicy resume" in complaint(
        capsys
    )


def test_a_part_that_is_not_there(run, capsys):
    sorted((run / "metrics").iterdir())[0].unlink()
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "metrics of rounds 0 to 9 are missing" in complaint(capsys)


def test_a_part_still_being_written_is_not_read(run):
    (run / "metrics" / ".part-00000020-00000029.parquet.77.tmp").write_bytes(b"PAR1 half")
    assert report(run, "--out", run.parent / "r.html", "--page-only") == 0


def change_config(run: Path, **fields) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **fields}))


def test_a_run_of_another_version_has_an_unknown_field(run, capsys):
    change_config(run, learning_rte=1)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "written by nextpolicy 0.1.0, this is" in (said := complaint(capsys))
    assert "unknown field 'learning_rte'; did you mean" in said


def test_a_config_that_is_not_json(run, capsys):
    (run / "config.json").write_text('{"env": ')
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "config.json cannot be read" in complaint(capsys)


def test_different_settings_of_an_environment_are_refused_unless_asked_for(tmp_path, run, capsys):
    write_run(tmp_path / "other", "brax/ant", seeds=(2, 3), learning_rate=1e-3)
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    said = complaint(capsys)
    assert "learning_rate: expected the same on brax/ant in all runs, got 0.0003 in" in said
    assert f"and 0.001 in {tmp_path / 'other'}; --allow-mixed" in said
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0


def test_fields_of_one_environment_need_no_permission_and_are_said(tmp_path, capsys):
    """As `[environment."brax/hopper"]` in a suite gives them."""
    write_run(tmp_path / "a", "brax/ant", seeds=2, rounds=20)
    write_run(tmp_path / "b", "brax/hopper", seeds=2, rounds=30, gamma=0.9)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 0
    steps = [run.settings["total_env_steps"] for run in load_all([tmp_path])]
    said = (
        "ettings that differ between environments: gamma (0.99 on brax/ant; 0.9 on brax/hopper), "
        f"total_env_steps ({steps[0]} on brax/ant; {steps[1]} on brax/hopper)"
    )
    assert said in capsys.readouterr().out
    page = (tmp_path / "r.html").read_text()
    assert said in page
    assert "Mixed settings" not in page
    write_run(tmp_path / "c", "brax/hopper", seeds=(2, 3), rounds=30)  # the environment under another setting
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 2
    assert "gamma: expected the same on brax/hopper in all runs, got " in complaint(capsys)


def test_values_of_many_environments_are_counted(tmp_path):
    for i, env in enumerate(("ant", "hopper", "reacher", "pusher", "fast")):
        write_run(tmp_path / env, f"brax/{env}", seeds=1, algo=("ppo",), parts=1, gamma=0.9 if i == 4 else 0.99)
    (said,) = compare(load_all([tmp_path])).varied
    assert said == "gamma (0.99 on 4 environments; 0.9 on brax/fast)"


def test_different_suites_are_not_one_comparison_and_may_differ(tmp_path, run):
    write_run(tmp_path / "other", "gymnax/Breakout-MinAtar", seeds=2)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 0


def test_the_same_seed_twice_is_refused_unless_asked_for(tmp_path, run, capsys):
    write_run(tmp_path / "again", "brax/ant", seeds=1)
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    assert "seeds: expected each seed once, got ppo, seed 0 on brax/ant in" in complaint(capsys)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0
    page = (tmp_path / "r.html").read_text()
    assert "ant (again)" in page
    assert "ant (run)" in page


def environments(*paths: Path, allow_mixed: bool = False) -> dict[str, int]:
    """Seeds of sv-static on each line of the table."""
    table = compare(load_all(paths, allow_mixed=allow_mixed)).environments["brax", "sv-static"]
    return dict(zip(table["env"], table["seeds"], strict=True))


def test_two_suites_of_the_same_folders_stand_on_lines_of_their_own(tmp_path):
    for suite in ("a", "b"):
        write_run(tmp_path / suite / "brax-ant", "brax/ant", seeds=2)
    apart = environments(tmp_path / "a", tmp_path / "b", allow_mixed=True)
    assert apart == {"brax/ant (a/brax-ant)": 2, "brax/ant (b/brax-ant)": 2}


def test_seeds_of_two_settings_are_not_one_sample_even_if_mixing_is_allowed(tmp_path, capsys):
    write_run(tmp_path / "a", "brax/ant", seeds=2)
    write_run(tmp_path / "b", "brax/ant", seeds=(2, 3, 4), gamma=0.9)
    assert environments(tmp_path, allow_mixed=True) == {"brax/ant (a)": 2, "brax/ant (b)": 3}
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0
    assert "mixed: runs differ in gamma" in capsys.readouterr().out
    assert "Mixed settings: these runs differ in gamma;" in (tmp_path / "r.html").read_text()


def test_variants_of_two_settings_are_compared_if_mixing_is_allowed(tmp_path):
    write_run(tmp_path / "a", "brax/ant", algo=("ppo",))
    write_run(tmp_path / "b", "brax/ant", algo=("sv-static",), gamma=0.9)
    table = compare(load_all([tmp_path], allow_mixed=True)).environments["brax", "sv-static"]
    assert table["score_pct_of_ppo"].tolist() == [100.0]


def test_the_same_run_given_twice_is_one_run(tmp_path, run, capsys):
    (tmp_path / "link").symlink_to(run)
    assert report(run, tmp_path, tmp_path / "link", "--out", tmp_path / "r.html", "--page-only") == 0
    assert "1 run)" in capsys.readouterr().out


def test_seeds_in_two_folders_are_one_environment(tmp_path):
    write_run(tmp_path / "a", "brax/ant", seeds=2)
    write_run(tmp_path / "b", "brax/ant", seeds=(2, 3, 4))
    assert environments(tmp_path) == {"brax/ant": 5}


def change_part(run: Path, change, which: int = 1) -> None:
    part = sorted((run / "metrics").iterdir())[which]
    change(pd.read_parquet(part)).to_parquet(part, index=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda f: f.assign(round=f["round"] - 10),
            "part-00000010-00000019.parquet does not hold the rounds in its name",
        ),
        (lambda f: pd.concat([f, f.head(1)]), "metrics: expected each round once, got round 10 twice"),
        (lambda f: f.assign(seed=f["seed"] + 5), "expected the members of config.json, got member 0 as ppo, seed 5"),
        (lambda f: f.assign(variant="mine"), "expected the members of config.json, got member 0 as mine, seed 0"),
        (
            lambda f: f.assign(member=f["member"] + 99),
            "of config.json, got member 99 as ppo, seed 0",
        ),
        (lambda f: f.assign(entropy="high"), "metrics: expected numbers in entropy, got object"),
    ],
)
def test_metrics_that_cannot_be_of_this_run(run, capsys, change, words):
    change_part(run, change)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert words in complaint(capsys)


def test_parts_that_overlap(run, capsys):
    _, second = sorted((run / "metrics").iterdir())
    pd.read_parquet(second).query("round >= 15").to_parquet(second.with_name("part-00000015-00000019.parquet"))
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "part-00000015-00000019.parquet overlaps another part" in complaint(capsys)


@pytest.mark.parametrize("about", [[1], "x", {"versions": [1]}])
def test_facts_that_are_no_table(run, capsys, about):
    change_config(run, about=about)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "about: expected an object in config.json, got " in complaint(capsys)


@pytest.mark.parametrize(
    ("name", "content"), [("status.json", "[]"), ("status.json", "{"), ("evaluation.json", '{"a": 1}')]
)
def test_little_files_that_cannot_be_read(run, capsys, name, content):
    (run / name).write_text(content)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert name in complaint(capsys)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("r.pdf", "ends in .html"),
        ("no/where/r.html", "expected a file in an existing folder, got"),
        ("folder.html", "out: expected a file, got the folder"),
    ],
)
def test_a_wrong_out(run, capsys, out, words):
    (run.parent / "folder.html").mkdir()
    assert report(run, "--out", run.parent / out) == 2
    assert words in complaint(capsys)


def test_files_cannot_go_into_a_file(run, capsys):
    (run.parent / "taken").write_text("mine")
    for inside in ("taken", "taken/deep"):
        assert report(run, "--out", run.parent / "r.html", "--files", run.parent / inside) == 2
        assert "which is a file or inside one" in complaint(capsys)
    assert not (run.parent / "r.html").exists()


def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder cannot be written \(Is a directory\)"):
        files.write(tmp_path / "folder", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_run_that_has_just_begun_is_shown(tmp_path):
    write_run(tmp_path / "a", "brax/ant", state="running")
    for part in (tmp_path / "a" / "metrics").iterdir():
        part.unlink()
    assert report(tmp_path, "--out", tmp_path / "r.html") == 0
    assert "No member has a score yet: only finished runs" in (tmp_path / "r.html").read_text()


def test_names_cannot_become_markup(tmp_path):
    folder = write_run(tmp_path / "a", "brax/ant", state="failed", reason="</script><b>&")
    change_config(folder, wandb="</script><img src=x>")
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only", "--title", "<i>") == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<title>&lt;i&gt;</title>" in page


def test_thinning_keeps_ends_and_extremes():
    rng = np.random.default_rng(0)
    x = np.arange(5000)
    y = rng.normal(size=5000)
    y[1234], y[4321], y[7] = 99.0, -99.0, np.nan
    thin_x, thin_y = curves.thin(x, y, 200)
    assert len(thin_x) <= 200
    assert (thin_x[0], thin_x[-1]) == (0, 4999)
    assert np.all(np.diff(thin_x) > 0)
    assert thin_y[thin_x == 1234] == 99.0
    assert thin_y[thin_x == 4321] == -99.0
    np.testing.assert_array_equal(thin_y, y[thin_x])
    assert curves.thin(x, np.ones(5000), 200)[0].tolist() == [0, 4999]
    assert len(curves.thin(x, np.ones(5000), 200, line=False)[0]) == 101  # points that stand alone: one of each bucket
    assert len(curves.thin(x[:150], y[:150], 200)[0]) == 149  # all but the NaN


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
