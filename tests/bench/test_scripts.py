"""The scripts of benchmarks/ do and print what they say, on work of no size, and complain in one line."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from nextpolicy.config import presets

from .scripts import SCRIPTS, complaint, run

pytestmark = pytest.mark.quick_compilation

TINY = ["num_envs=4", "rollout_length=8", "minibatch_size=16", "hidden=8"]
WORK = ":".join(["gymnax/CartPole-v1", "2", *TINY])


def test_parts_are_those_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with jax.debug_key_reuse(False):  # it does the same thing over and over
        run(monkeypatch, "parts.py", WORK, "--only", "evaluate", "round", "--repeats", "1")
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("gymnax/CartPole-v1 num_envs=4")
    assert ", 2 members" in title
    assert [row.split()[0] for row in rows] == ["evaluate", "round"]
    assert all(float(row.split()[1]) > 0 and row.endswith(" ms") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["four-room"], "parts.py: error: environment: expected a known id, got 'four-room'; nearest: four-rooms"),
        (["gymnax/CartPole-v1:x"], "parts.py: error: members: expected whole numbers of at least 1 and at most 10000"),
        (
            ["gymnax/CartPole-v1:1:hiden=3"],
            "parts.py: error: set: expected NAME=VALUE with a field of the configuration, got 'hiden=3'",
        ),
        (
            ["gym/CartPole-v1"],
            "parts.py: error: work: expected an environment that runs inside XLA, got gym/CartPole-v1",
        ),
        (
            ["gymnax/CartPole-v1", "--repeats", "0"],
            "parts.py: error: repeats: expected a whole number of at least 1, got 0",
        ),
        (["gymnax/CartPole-v1", "--only", "all"], "parts.py: error: argument --only: invalid choice: 'all'"),
    ],
)
def test_parts_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert complaint(monkeypatch, capsys, "parts.py", *arguments).startswith(message)


def test_the_same_work_twice_learns_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gamma = presets.build("gymnax/CartPole-v1").flat()["gamma"]
    variants = [":".join(TINY), ":".join([*TINY, f"gamma={gamma}"])]  # the second says what the preset says anyway
    arguments = ["gymnax/CartPole-v1", *variants, "--seeds", "2", "--steps", "640", "--out", str(tmp_path)]
    run(monkeypatch, "same_learning.py", *arguments)
    with (tmp_path / "curves-gymnax-CartPole-v1.csv").open() as file:
        rows = list(csv.DictReader(file))
    curves = [[(r["seed"], r["episode_return"]) for r in rows if r["variant"] == v] for v in variants]
    assert curves[0] == curves[1]
    assert [seed for seed, _ in curves[0]] == ["0"] * 50 + ["1"] * 50
    assert "difference     +0.00" in capsys.readouterr().out.splitlines()[-1]
    scores = json.loads((tmp_path / "scores-gymnax-CartPole-v1.json").read_text())
    assert scores[variants[0]]["scores"] == scores[variants[1]]["scores"]
    refusal = complaint(monkeypatch, capsys, "same_learning.py", *arguments)
    assert "expected a folder without curves-gymnax-CartPole-v1.csv" in refusal


def test_differences_of_means_and_spreads_are_those_of_scipy() -> None:
    compare = runpy.run_path(str(SCRIPTS / "same_learning.py"))["compare"]
    rng = np.random.default_rng(0)
    first, score = rng.normal(10.0, 1.0, 24), rng.normal(11.0, 3.0, 24)
    row, welch = compare(first, score), stats.ttest_ind(score, first, equal_var=False)
    interval = welch.confidence_interval(0.95)
    low, high = row["difference"] - row["difference_interval"], row["difference"] + row["difference_interval"]
    np.testing.assert_allclose([low, high], [interval.low, interval.high])
    np.testing.assert_allclose(row["spread_ratio"], score.std() / first.std())
    # Brown and Forsythe: a one-way analysis of variance of the distances from the medians.
    distances = (np.abs(x - np.median(x)) for x in (first, score))
    np.testing.assert_allclose(row["spread_p"], stats.f_oneway(*distances).pvalue)
    # Four of five samples with this true difference are found different.
    true, error = row["detectable_difference"], np.sqrt((first.var(ddof=1) + score.var(ddof=1)) / 24)
    power = 1.0 - stats.nct.cdf(stats.t.ppf(0.975, welch.df), welch.df, true / error)
    assert abs(power - 0.8) < 0.01


def test_the_committed_table_of_harm_follows_from_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = SCRIPTS.parent / "results" / "off-policy"
    run(monkeypatch, "off_policy_harm.py", "table", str(results / "harm.csv"))
    assert capsys.readouterr().out == (results / "harm.md").read_text()


def test_minutes_of_suites_are_members_by_steps_by_measured_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "suite_minutes.py")
    first, second = capsys.readouterr().out.split("\n\n")
    measured, estimated = (
        {line.split(" | ")[0][2:]: line.rstrip(" |").split(" | ")[1:] for line in part.splitlines()}
        for part in (first, second)
    )
    # 237, 166, 166 and 179 s; 16 members x 50M steps on each of four tasks.
    assert measured["brax-gate"] == ["4", "3,200", "12"]
    speed = SCRIPTS.parent / "results" / "speed"
    rate = {}
    for name in ("h200-matrix.json", "h200-cnn-matrix.json"):
        for row in json.loads((speed / name).read_text()):
            if row["contender"] == "nextpolicy ppo":
                rate[name, row["env"], row["members"]] = row["steps_per_second"] * 60
    steps = 50_000_000 // 20_480 * 20_480
    slow = 36 * steps / rate["h200-matrix.json", "brax/humanoidstandup", 12]
    assert estimated["brax"][1].startswith(f"humanoidstandup {slow:.0f}, humanoid ")
    assert ", swimmer at most 50, " in estimated["brax"][1]
    steps = 10_000_000 // 8192 * 8192
    game = 36 * steps / rate["h200-cnn-matrix.json", "gymnax/Seaquest-MinAtar", 24]
    assert estimated["minatar-tuning"][1].startswith(f"Seaquest-MinAtar {game:.0f}, ")
    assert float(estimated["atari"][0].replace(",", "")) / 60 / 24 == pytest.approx(25.6, abs=0.5)  # days


MEMBERS = """env,variant,seed,score
a,ppo,0,1
a,ppo,1,2
a,ppo,2,3
a,sv[k=1],0,2
a,sv[k=1],1,5
a,sv[k=1],2,7
a,sv[k=2],0,4
a,sv[k=2],1,
a,sv[k=2],2,7
b,ppo,0,1
"""


@pytest.fixture
def members(tmp_path: Path) -> Path:
    path = tmp_path / "members.csv"
    path.write_text(MEMBERS)
    return path


def test_differences_are_welchs_of_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], members: Path
) -> None:
    run(monkeypatch, "differences.py", str(members), "^ppo", r"\[k=.\]")
    _, _, *rows = capsys.readouterr().out.splitlines()
    test = stats.ttest_ind([1.0, 2.0, 3.0], [3.0, 5.0, 7.0], equal_var=False)  # the second: means over k
    low, high = test.confidence_interval()
    assert rows == [f"| a | 2 (3) | 5 (3) | -3 [{low:.3g}, {high:.3g}] | {test.pvalue:.2g} |"]


def test_differences_from_another_file_and_of_one_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], members: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("env,variant,seed,score\nb,ppo,0,5\nb,ppo,1,5\nc,ppo,0,9\n")
    run(monkeypatch, "differences.py", str(members), "ppo", "ppo", "--other", str(other))
    assert capsys.readouterr().out.splitlines()[2:] == ["| b | 1 (1) | 5 (2) | -4 [nan, nan] | nan |"]


def test_differences_over_environments_are_of_interquartile_means_and_of_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    scores = {"a": (rng.normal(12, 1, 8), rng.normal(10, 1, 6)), "b": (rng.normal(-3, 1, 8), rng.normal(-5, 1, 6))}
    lines = [
        f"{env},{variant},{seed},0,{x}"
        for env, groups in scores.items()
        for variant, group in zip(("new", "old"), groups, strict=True)
        for seed, x in enumerate(group)
    ]
    path = tmp_path / "members.csv"
    path.write_text("\n".join(["env,variant,seed,score,area", *lines]))
    run(monkeypatch, "differences.py", str(path), "new", "old", "--column", "area", "--envs", "^.$")
    gain, chance = (line.split(": ")[1].split() for line in capsys.readouterr().out.splitlines()[-2:])
    in_percent = [[100 * (x - old.mean()) / abs(old.mean()) for x in (new, old)] for new, old in scores.values()]
    means = [stats.trim_mean(np.concatenate(runs), 0.25) for runs in zip(*in_percent, strict=True)]
    assert gain[0] == f"{means[0] - means[1]:.3g}"
    ranks = [stats.mannwhitneyu(new, old).statistic / (len(new) * len(old)) for new, old in scores.values()]
    assert chance[0] == f"{np.mean(ranks):.3g}"
    for estimate, low, high in (gain, chance):
        assert float(low.strip("[,")) < float(estimate) < float(high.strip("]"))
    assert float(gain[1].strip("[,")) > 0  # two standard deviations apart
    assert float(chance[2].strip("]")) <= 1
    run(monkeypatch, "differences.py", str(path), "new", "old", "--column", "area", "--envs", "a")
    assert len(capsys.readouterr().out.splitlines()) == 3  # one environment, no aggregate


def test_a_tie_counts_half_and_environments_are_matched_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    rows = [f"a,new,{seed},4\nb,new,{seed},1" for seed in range(3)]
    first.write_text("\n".join(["env,variant,seed,score", *rows, "b,new,3,", "b,new,4,inf"]))
    second.write_text(
        "\n".join(["env,variant,seed,score", *(f"b,old,{s},1\nc,old,{s},9\na,old,{s},2" for s in range(3))])
    )
    run(monkeypatch, "differences.py", str(first), "new", "old", "--other", str(second))
    printed = capsys.readouterr().out.splitlines()
    assert printed[3].startswith("| b | 1 (3) | 1 (3) | 0 ")
    assert printed[-2:] == [
        "interquartile mean, less that of the second, %: 50 [50, 50]",
        "probability of a higher score: 0.75 [0.75, 0.75]",
    ]
    second.write_text("\n".join(["env,variant,seed,score", *(f"b,old,{s},0\na,old,{s},2" for s in range(3))]))
    run(monkeypatch, "differences.py", str(first), "new", "old", "--other", str(second))
    assert capsys.readouterr().out.splitlines()[-2].endswith(": nan [nan, nan]")  # no percentage of 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{}", "ppo", "sv", "--column", "seed"],
            "column: expected a column of numbers such as score or area, got seed",
        ),
        (["{}", "ppo", "sv", "--column", "variant"], "column: expected a column of numbers"),
        (["{}", "ppo", "sv", "--column", "area"], "got no column area"),
        (["{}", "ppo", "dqn"], "pattern: expected one that some variant of {} has, got 'dqn'"),
        (["{}", "ppo", "sv", "--envs", "c"], "environments: expected one that both groups have, got --envs c"),
        (["{}", "ppo", "sv", "--envs", "["], "pattern: expected a regular expression, got '['"),
        (["{}", "ppo", "("], "pattern: expected a regular expression, got '(' (missing ), unterminated subpattern"),
        (["{}.no", "ppo", "sv"], "{}.no: expected members.csv of a report, got a file that cannot be read"),
        (["{}/..", "ppo", "sv"], "expected members.csv of a report, got a file that cannot be read"),
    ],
)
def test_differences_complain_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    members: Path,
    arguments: list[str],
    message: str,
) -> None:
    given = [word.format(members) for word in arguments]
    assert message.format(members) in complaint(monkeypatch, capsys, "differences.py", *given)


def test_differences_need_their_columns_and_a_shared_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], members: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    for text, message in (
        ("env,variant,score\nb,ppo,5\n", "got no column seed"),
        ("env,variant,seed,score\nc,ppo,0,5\n", "environments: expected one that both groups have, got a and c"),
        ("", "got a file that cannot be read"),
    ):
        other.write_text(text)
        said = complaint(monkeypatch, capsys, "differences.py", str(members), "ppo", "ppo", "--other", str(other))
        assert message in said
