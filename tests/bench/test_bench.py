"""The benchmark harness measures, prints and keeps what it measured; how fast anything is, is not tested."""

import json

import pytest

from nextpolicy.bench import main as bench
from nextpolicy.bench.contenders import Contender
from nextpolicy.run import cli

SMALL = ["--set", "num_envs=2", "rollout_length=4", "minibatch_size=8", "hidden=4", "total_env_steps=80"]


def test_rates_are_ratios_to_the_first_contender_and_overhead_is_taken_off(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(bench, "timed", lambda f: (f(), clock.pop("took", 0.0))[1])

    def taking(seconds_per_round):
        def run(rounds):
            clock["took"] = seconds_per_round * rounds + 5.0

        return run

    def overhead():
        clock["took"] = 5.0

    made = [
        Contender("slow", 100, taking(0.1), notes={"overhead": overhead}),
        Contender("fast", 100, taking(0.05), notes={"overhead": overhead}),
    ]
    rows = bench.measure(made, members=1, rounds=bench.lengths(made, 1.0), repeats=3)
    assert [r["steps_per_second"] for r in rows] == pytest.approx([1000, 2000])
    assert [r["ratio"] for r in rows] == pytest.approx([1.0, 2.0])


def test_the_command_measures_ours_and_the_simulator_and_keeps_the_numbers(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ["bench", "probe/constant", "--contenders", "ppo,simulator", "--seconds", "0.01", "--repeats", "1"]
    assert cli.main([*arguments, "--out", str(out), *SMALL]) == 0
    kept = json.loads(out.read_text())
    assert [r["contender"] for r in kept["rows"]] == ["nextpolicy ppo", "simulator alone"]
    assert all(r["steps_per_second"] > 0 for r in kept["rows"])
    assert "simulator alone" in capsys.readouterr().out
    assert cli.main([*arguments, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--contenders", "ppq"], "contenders: got 'ppq'"),
        (["--members", "0"], "members: got '0'"),
        (["--members", "x"], "members: got 'x'"),
        (["--set", "num_env=3"], "set: got 'num_env=3'"),
        (["--contenders", "purejaxrl"], "takes --purejaxrl with the path"),
        (["--contenders", "purejaxrl", "--purejaxrl", "nowhere"], "takes a checkout that has ppo.py"),
    ],
)
def test_wrong_words_are_answered_in_one_line(arguments, words, capsys):
    assert cli.main(["bench", "gymnax/CartPole-v1", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
