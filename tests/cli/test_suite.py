"""`nextpolicy suite`: what it refuses, what it shows while it runs, and how it ends."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pandas as pd
import pytest

from experiments.helpers import Pretence, tiny, write_toml
from nextpolicy.cli import main as cli
from nextpolicy.cli import suite
from nextpolicy.cli import suite_display as display
from nextpolicy.experiments.catalogue import SUITES
from nextpolicy.experiments.engines import LocalEngine
from nextpolicy.experiments.execution import Outcome
from nextpolicy.run import metrics
from nextpolicy.run.folder import RunFolder

pytestmark = pytest.mark.quick_compilation


@pytest.fixture
def pretence(monkeypatch) -> Pretence:
    return Pretence(monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "smok"], "unknown suite 'smok'; did you mean 'smoke'"),
        (["run", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["run", "smoke", "--engine", "rai"], "engine: expected local or ray, got 'rai'"),
        (["run", "smoke", "--budget", "soon"], "budget: expected a time such as 25m, 90s or 1h30m, got 'soon'"),
        (["run", "smoke", "--budget=-5m"], "budget: expected a time such as 25m, 90s or 1h30m, got '-5m'"),
        (["run", "smoke", "--budget", "0s"], "budget: expected a time such as 25m, 90s or 1h30m, got '0s'"),
        (["run", "smoke", "--budget", "5m1h"], "budget: expected a time such as 25m, 90s or 1h30m, got '5m1h'"),
        (["run", "smoke", "--budget", "25"], "budget: expected a time such as 25m, 90s or 1h30m, got '25'"),
        (["run", "smoke", "--budget", "9" * 400 + "h"], "budget: expected a time such as 25m"),
        (["run", "smoke", "--engine", "ray", "--cpus", "-1"], "cpus: expected a number from 0 to 100000, got -1.0"),
        (["run", "smoke", "--engine", "ray", "--gpus", "nan"], "gpus: expected a number from 0 to 100000, got nan"),
        (["run", "smoke", "--seeds", "0"], "seeds: expected a number of seeds of at least 1"),
        (["run", "smoke", "--only", "brax/ant"], "only: expected an environment of smoke, got 'brax/ant'"),
        (["ran", "smoke"], "unknown subcommand 'ran'; did you mean 'run'"),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, arguments, complaint, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["suite", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert complaint in said
    assert len(said.splitlines()) == 1


def test_an_unknown_environment_is_found_before_anything_runs(tmp_path, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action", "probe/acton"]\npreset = "default"')
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out")]) == 2
    assert "environment: expected a known id, got 'probe/acton'; nearest: probe/action" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "seconds"), [("25m", 1500), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400)])
def test_times(text, seconds):
    assert suite.seconds(text) == seconds


def test_lines_tell_what_changes_and_now_and_then_a_round(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    a, b = tiny("probe/action", tmp_path), tiny("probe/constant", tmp_path)
    lines = display.Lines([a, b])
    lines.tell(a, "starting")
    for now[0] in (0.0, 10.0, 29.0, 31.0):
        lines.tell(a, f"round {now[0]:.0f}")
    lines.tell(b, "done")
    assert capsys.readouterr().err.splitlines() == [
        "probe/action    starting",
        "probe/action    round 0",
        "probe/action    round 31",
        "probe/constant  done",
    ]


def test_quiet_tells_failures_only(tmp_path, capsys):
    task = tiny("probe/action", tmp_path)
    for text in ("starting", "round 1/6", "failed, trying once more: the cat", "failed: the cat", "done"):
        display.Silent().tell(task, text)
    told = ["probe/action: failed, trying once more: the cat", "probe/action: failed: the cat"]
    assert capsys.readouterr().err.splitlines() == told


def test_bars_are_as_far_as_the_folders(tmp_path):
    a, b = tiny("probe/action", tmp_path), tiny("probe/constant", tmp_path)
    RunFolder.create(a.path, a.config, {"custom": []}).unlock()
    RunFolder.open(a.path).set_status("stopped", rounds_done=2)
    bars = display.Bars([a, b])
    shown = lambda: [(t.description, t.completed, t.total, t.fields["text"]) for t in bars.bars.tasks]  # noqa: E731
    assert shown() == [("probe/action", 2, 6, "stopped"), ("probe/constant", 0, 6, "left")]
    bars.tell(a, "round 4/6, return 1")
    bars.tell(b, "starting")
    assert shown() == [("probe/action", 4, 6, "round 4/6, return 1"), ("probe/constant", 0, 6, "starting")]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "-"), (float("nan"), "unknown"), (59.4, "59 s"), (90, "2 min"), (5400, "1.5 h")]
)
def test_time_left(seconds, shown):
    assert display.time_left(seconds) == shown


def test_the_command_says_how_it_ended(tmp_path, pretence, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action", "probe/constant"]\npreset = "default"\nseeds = 1')
    command = ["suite", "run", path, "--out", str(tmp_path / "out")]
    pretence.faults = ["the cat"] * 2
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].endswith("suite: 1 of 2 environments failed, 1 are done; probe/action: the cat")
    assert said.out == ""
    assert cli.main(["suite", "status", path, "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[:2] == ["probe/action", "failed"]
    assert table[1].endswith("the cat")
    assert table[-1].split()[:5] == ["all", "1", "of", "2", "done"]
    assert cli.main([*command, "--only", "probe/action"]) == 0
    assert capsys.readouterr().out == f"1 of 1 environments done in {tmp_path / 'out'}\n"
    assert cli.main([*command, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_command_with_a_budget_says_that_there_is_more(tmp_path, monkeypatch, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action"]\npreset = "default"\nseeds = 1')
    given = []

    def run(self, tasks, until, tell):
        given.append(until - time.time())
        return [Outcome("stopped", "time is up")]

    monkeypatch.setattr(LocalEngine, "run", run)
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out"), "--budget", "2m"]) == 0
    assert given[0] == pytest.approx(120, abs=20)
    assert capsys.readouterr().out == f"0 of 1 environments done in {tmp_path / 'out'}; the same command continues\n"


def test_lists(capsys):
    assert cli.main(["suite", "list"]) == 0
    assert re.search(r"^smoke +3 environments x  9 members", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(["suite", "list", "smoke"]) == 0
    assert capsys.readouterr().out.splitlines() == list(SUITES["smoke"].environments)


def test_out_may_not_be_a_file(tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["suite", "status", "smoke", "--out", str(tmp_path / "taken")]) == 2
    assert "out: expected a folder, got the file" in capsys.readouterr().err


def test_status_estimates_the_time_left(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    frame = pd.DataFrame({"round": [0, 1], "steps_per_second": [0.5, 0.5]})
    metrics.write_part(Path(task.path) / "metrics", frame)
    RunFolder.open(task.path).set_status("stopped", rounds_done=2)
    other = tiny("probe/constant", tmp_path)
    first, second, total = display.status_table([task, other]).splitlines()[1:]
    assert first.split() == ["probe/action", "stopped", "2/6", "4", "min"]  # 4 rounds x 32 steps at 0.5 a second
    assert second.split() == ["probe/constant", "left", "0/6", "6", "min"]  # 6 x 32 at the rate of the other
    assert total.split() == ["all", "0", "of", "2", "done", "11", "min"]
    faster = tiny("probe/action-observation", tmp_path)
    RunFolder.create(faster.path, faster.config, {"custom": []}).unlock()
    metrics.write_part(Path(faster.path) / "metrics", frame.assign(steps_per_second=3.5))
    second = display.status_table([task, other, faster]).splitlines()[2]
    assert second.split() == ["probe/constant", "left", "0/6", "2", "min"]  # 192 steps at the mean of 0.5 and 3.5: 96 s


def test_a_reason_from_a_file_cannot_forge_rows_or_steer_the_terminal(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    RunFolder.open(task.path).set_status("failed", reason="\x1b[2Jbroken\nprobe/constant  done")
    lines = display.status_table([task]).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(r"\x1b[2Jbroken\nprobe/constant  done")
