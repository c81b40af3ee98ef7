"""The benchmark harness measures, prints and keeps what it measured; how fast anything is, is not tested."""

import itertools
import json
import math

import numpy as np
import pytest

from nextpolicy.bench import contenders
from nextpolicy.bench import measure as harness
from nextpolicy.bench.brax_peer import nearest_divisor
from nextpolicy.bench.contenders import Contender, Reached, Timing, reached
from nextpolicy.bench.work import parse_works
from nextpolicy.cli import main as cli
from nextpolicy.config import ConfigError

pytestmark = pytest.mark.quick_compilation

SMALL = ["--set", "num_envs=2", "rollout_length=4", "minibatch_size=8", "hidden=4", "total_env_steps=80"]


def self_timed(name, seconds_per_round, load=(1.0,)):
    """A contender that says how long it took; `load` is how many times longer its turns take."""
    loads = itertools.cycle(load)

    def clock(rounds):
        return Timing(seconds_per_round * rounds * next(loads), seconds_per_round * rounds)

    return Contender(name, 100, clock, clock=clock, memory=lambda: (2**20, "contender"))


def test_rates_are_medians_and_ratios_are_taken_turn_by_turn():
    made = [self_timed("slow", 0.1, load=(1, 2, 4)), self_timed("fast", 0.05, load=(1, 2, 1))]
    rows = harness.measure(made, members=4, rounds={"slow": 10, "fast": 10}, repeats=3)
    assert [r["steps_per_second"] for r in rows] == pytest.approx([500, 2000])
    assert [r["steps_per_cpu_second"] for r in rows] == pytest.approx([1000, 2000])
    assert [r["ratio"] for r in rows] == pytest.approx([1.0, 2.0])  # of 2, 2 and 8
    assert [r["cpu_ratio"] for r in rows] == pytest.approx([1.0, 2.0])
    assert [r["spread"] for r in rows] == pytest.approx([1.5, 1.0])
    assert [(r["members"], r["rounds"]) for r in rows] == [(4, 10), (4, 10)]


def test_what_a_run_does_beside_its_rounds_is_taken_off(monkeypatch):
    took = {}
    monkeypatch.setattr(harness, "timed", lambda f: (f(), Timing(took["s"], took["s"] / 2))[1])
    run = lambda rounds: took.update(s=0.1 * rounds + 5.0)  # noqa: E731
    c = Contender("peer", 100, run, overhead=lambda: took.update(s=5.0))
    assert harness.take(c, 10) == pytest.approx((1.0, 0.5))


def test_a_measurement_drowned_by_the_start_is_refused(monkeypatch):
    monkeypatch.setattr(harness, "timed", lambda f: Timing(1.0, 1.0))
    c = Contender("peer", 100, lambda rounds: None, overhead=lambda: None)
    with pytest.raises(RuntimeError, match="peer: expected 7 rounds to take longer than the fixed overhead"):
        harness.measure([c], 1, {"peer": 7}, 1)


def test_a_contender_of_one_length_takes_the_rounds_of_the_one_before_it():
    asked = []
    made = [self_timed("first", 0.01), Contender("one", 1, asked.append, one_length=True)]
    assert harness.lengths(made, seconds=1.0) == {"first": 100, "one": 100}
    assert asked == [100]


def test_our_algorithms_are_compared_with_our_ppo_wherever_it_stands():
    made = [self_timed("peer", 0.2), self_timed("nextpolicy sv-dynamic", 0.125), self_timed("nextpolicy ppo", 0.1)]
    rows = harness.measure(made, 1, {c.name: 4 for c in made}, 1)
    assert [r["contender"] for r in rows][3:] == ["sv-dynamic / ppo"]
    assert rows[3]["ratio"] == pytest.approx(0.8)
    lines = harness.table(rows).splitlines()
    assert len(lines) == 5
    assert "0.800" in lines[4]
    assert "*" not in lines[1]


def test_a_return_is_reached_when_half_of_the_members_have():
    nan = math.nan
    returns = np.array([[nan, 1.0, 5.0, 2.0], [nan, nan, nan, 6.0], [0.0, 1.0, 2.0, 3.0], [nan, 7.0, 0.0, 0.0]])
    seconds = np.array([1.0, 2.0, 4.0, 8.0])
    assert reached(returns, seconds, 10, target=5.0) == Reached(4.0, 30, 3)
    assert reached(returns[:2], seconds, 10, target=5.0) == Reached(4.0, 30, 2)
    assert reached(returns[1:2], seconds, 10, target=5.0) == Reached(8.0, 40, 1)
    assert reached(returns[2:3], seconds, 10, target=5.0) == Reached(None, 40, 0)


def test_the_time_to_a_return_is_told_for_those_who_know_it():
    made = [Contender("a", 1, print, until=lambda r: Reached(r, 20, 1)), Contender("b", 1, print)]
    made.append(Contender("c", 1, print, until=lambda r: Reached(None, 20, 0)))
    rows = harness.until_return(made, 1, 2.5)
    assert [(r["contender"], r["seconds"]) for r in rows] == [("a", 2.5), ("c", None)]
    assert "2.50" in harness.until_table(rows)
    assert "never" in harness.until_table(rows)


def test_works_are_environments_times_members_times_numbers_of_environments():
    works = parse_works(["a/b:1,2", "c/d:3:hidden=8,8:lam=0.9", "e"], "4", "16,32", ["gamma=0.9"])
    assert [(w.env, w.members, w.fields["num_envs"]) for w in works] == [
        *[("a/b", 1, 16), ("a/b", 1, 32), ("a/b", 2, 16), ("a/b", 2, 32)],
        *[("c/d", 3, 16), ("c/d", 3, 32), ("e", 4, 16), ("e", 4, 32)],
    ]
    assert works[4].fields == {"gamma": "0.9", "hidden": "8,8", "lam": "0.9", "num_envs": 16}
    with pytest.raises(ConfigError, match="got 'hiden=8'; did you mean 'hidden'"):
        parse_works(["c/d:3:hiden=8"], "1", "", [])


def test_brax_takes_the_nearest_number_of_minibatches_it_can_cut():
    assert [nearest_divisor(2048, n) for n in (20, 32, 3, 5000)] == [16, 32, 4, 2048]


def test_the_command_measures_ours_and_the_simulator_and_keeps_the_numbers(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ["bench", "probe/constant", "--contenders", "ppo,simulator", "--seconds", "0.01", "--repeats", "1"]
    assert cli.main([*arguments, "--until-return", "0.5", "--out", str(out), *SMALL]) == 0
    kept = json.loads(out.read_text())
    assert [r["contender"] for r in kept["rows"]] == ["nextpolicy ppo", "simulator alone"]
    assert all(r["steps_per_second"] > 0 for r in kept["rows"])
    # Of the programs alone, not of the process, which holds hundreds of megabytes.
    assert all(r["memory_of"] == "contender" and 0 < r["peak_memory_bytes"] < 2**22 for r in kept["rows"])
    assert [(r["contender"], r["env_steps"], r["there"]) for r in kept["until_return"]] == [("nextpolicy ppo", 8, 1)]
    assert "simulator alone" in capsys.readouterr().out
    assert cli.main([*arguments, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


FIELDS = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "hidden": (4,), "total_env_steps": 80}


def test_our_rounds_are_counted_as_they_are_and_waited_for(monkeypatch):
    made = contenders.ours("probe/constant", "ppo,sv-static,sv-dynamic", 3, FIELDS)
    assert made.steps_per_round == 2 * 4 * 3
    waited = []
    block_until_ready = contenders.jax.block_until_ready
    monkeypatch.setattr(contenders.jax, "block_until_ready", lambda x: (waited.append(x), block_until_ready(x))[1])
    done = made.run(4)
    assert len(waited) == 1
    assert waited[0] is done or np.shares_memory(np.asarray(waited[0]), np.asarray(done))
    with pytest.raises(ConfigError, match=r"members: expected a multiple of 3.*, got 4"):
        contenders.ours("probe/constant", "ppo,sv-static,sv-dynamic", 4, FIELDS)


def test_works_compiled_side_by_side_are_told_in_order_and_one_that_fails_loses_no_other(tmp_path, capsys):
    out = tmp_path / "bench.json"
    works = ["probe/constant:2", "gym/CartPole-v1", "probe/observation"]
    arguments = ["--contenders", "simulator", "--seconds", "0.01", "--compile-threads", "3", "--out", str(out)]
    assert cli.main(["bench", *works, *arguments, *SMALL]) == 2
    told = capsys.readouterr()
    assert "1 of 3 works failed: gym/CartPole-v1" in told.err
    assert told.out.index("probe/constant") < told.out.index("probe/observation")
    assert [(r["env"], r["members"]) for r in json.loads(out.read_text())["rows"]] == [
        ("probe/constant", 2),
        ("probe/observation", 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--contenders", "ppq"], "contenders: expected some of ppo, sv-static, sv-dynamic, all, simulator, purejaxrl"),
        (["--contenders", "ppo,ppo"], "contenders: expected each once, got 'ppo' twice"),
        (["--seconds", "nan"], "seconds: expected a positive number of at most 86400, got nan"),
        (["--seconds", "-1"], "seconds: expected a positive number of at most 86400, got -1.0"),
        (["--out", "nowhere/x.json"], "out: expected a file in an existing folder, got nowhere/x.json"),
        (["--set", "algo=ppo"], "set: expected a field that contenders share, got algo; use --contenders instead"),
        (["--set", "seeds=3"], "use --members instead"),
        (["--set", "lam=.9", "--set", "lam=.8"], "set: expected lam once"),
        (["--set", "seeds=3", "--set", "lam=.8"], "use --members instead"),
        (
            ["--members", "0"],
            "members: expected whole numbers of at least 1 and at most 10000, separated by commas, got '0'",
        ),
        (["--members", "x"], "got 'x'"),
        (["--num-envs", "8,0"], "num-envs: expected whole numbers of at least 1, separated by commas, got '8,0'"),
        (["--repeats", "0"], "repeats: expected a whole number of at least 1 and at most 1000, got 0"),
        (["--set", "num_env=3"], "got 'num_env=3'; did you mean 'num_envs'"),
        (
            ["--contenders", "all", "--members", "4"],
            "all: expected a multiple of 3 members, a third for each algorithm, got 4",
        ),
        (["--contenders", "purejaxrl"], "expected --purejaxrl with the path"),
        (["--contenders", "purejaxrl", "--purejaxrl", "nowhere"], "expected a checkout that has ppo.py"),
        (["--contenders", "brax"], "brax: expected an environment of brax/, got gymnax/CartPole-v1"),
        (["--contenders", "ppo,sb3"], "pip install stable-baselines3"),
        (
            ["--contenders", "rejax", "--peer-python", "rejax=nowhere"],
            "rejax: expected the Python interpreter of its virtual environment, got nowhere",
        ),
        (["--peer-python", "sb4=x"], "got 'sb4=x'"),
        (["--peer-python", "sb3"], "peer-python: expected NAME=PATH with a name of"),
    ],
)
def test_wrong_words_are_answered_in_one_line(arguments, words, capsys):
    assert cli.main(["bench", "gymnax/CartPole-v1", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
