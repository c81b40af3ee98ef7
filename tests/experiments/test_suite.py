"""Suites as data: those of the paper, and TOML files with all their mistakes."""

from __future__ import annotations

import pytest

from nextpolicy.cli import main as cli
from nextpolicy.experiments.catalogue import SUITES, load
from nextpolicy.experiments.suite import SuiteError, check_environments

from .helpers import write_toml

pytestmark = pytest.mark.quick_compilation


def test_the_suites_are_those_of_the_paper():
    assert {n: len(s.environments) for n, s in SUITES.items()} == {
        "minatar": 5,
        "minatar-paper": 5,
        "minatar-tuning": 5,
        "brax": 12,
        "brax-paper": 12,
        "brax-gate": 4,
        "minatar-criteria": 5,
        "brax-criteria": 4,
        "brax-sac": 4,
        "minatar-pqn": 5,
        "atari": 16,
        "classic": 4,
        "smoke": 3,
    }
    members = {n: len(s.config(s.environments[0]).members()) for n, s in SUITES.items()}
    assert (members["brax"], members["atari"], members["minatar"]) == (36, 15, 48)
    assert members["minatar-tuning"] == 36  # 4 thresholds x 3 bounds x 3 seeds
    assert members["brax-gate"] == 16  # 2 bounds x 8 seeds
    assert members["minatar-criteria"] == members["brax-criteria"] == 24  # 3 criteria x 8 seeds
    assert members["brax-sac"] == members["minatar-pqn"] == 24  # 3 variants x 8 seeds
    assert SUITES["brax"].config("brax/ant").run.total_env_steps == 50_000_000
    assert SUITES["brax-paper"].config("brax/ant").algorithm.truncation == "terminal"
    assert SUITES["brax-gate"].config("brax/hopper").members()[0].variant == "sv-dynamic[decay_fraction=0,k_max=8]"
    assert SUITES["minatar"].config("gymnax/Asterix-MinAtar").algorithm.clip == 0.1


@pytest.mark.parametrize("name", SUITES)
def test_every_environment_of_a_suite_is_known(name):
    check_environments(SUITES[name])


def test_a_suite_of_ones_own(tmp_path):
    mine = load(
        write_toml(
            tmp_path,
            """
            about = "two of them"
            environments = ["gymnax/CartPole-v1", "probe/action"]
            algo = ["ppo", "sv-dynamic"]
            seeds = [3, 5]
            preset = "default"
            [fields]
            total_env_steps = 100_000
            [environment."probe/action"]
            total_env_steps = 20_000
            """,
        )
    )
    assert mine.name == "mine"
    assert mine.config("gymnax/CartPole-v1").run.total_env_steps == 100_000
    assert mine.config("probe/action").run.total_env_steps == 20_000
    assert mine.config("probe/action").run.seeds == (3, 5)
    assert [m.variant for m in mine.config("probe/action").members()] == ["ppo"] * 2 + ["sv-dynamic"] * 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("environments = [", "is not TOML"),
        ("", "environments: expected a list of environment ids, got None"),
        ("environments = []", r"environments: expected a list of environment ids.*, got \[\]"),
        ('environments = ["probe/a", "probe/a"]', "environments: expected each environment once"),
        ('environments = ["probe/a"]\nenvironmets = 1', "unknown key 'environmets'; did you mean 'environments'"),
        ('environments = ["probe/a"]\nseeds = 0', "seeds: expected a number of seeds .*, got 0"),
        ('environments = ["probe/a"]\nalgo = "pppo"', "algo: expected one or several of ppo, .*, got 'pppo'"),
        ('environments = ["probe/a"]\npreset = "papr"', "preset: .*got 'papr'.*did you mean 'paper'"),
        ('environments = ["probe/a"]\n[fields]\nlearning_rat = 1', "unknown field 'learning_rat'.*learning_rate"),
        ('environments = ["probe/a"]\n[fields]\nseeds = 1', "seeds: expected as a key of the suite, got it in a table"),
        ('environments = ["probe/a"]\n[fields]\ngamma = 2', "gamma: expected a number in .*, got 2"),
        ('environments = ["probe/a"]\nfields = 3', "fields: expected a table, got 3"),
        ('environments = ["probe/a"]\nevaluate_episodes = -1', "evaluate_episodes: .*got -1"),
        ('environments = ["probe/a"]\nevaluate_episodes = true', "evaluate_episodes: .*got True"),
        ('environments = ["probe/a"]\nalgo = 5', "algo: expected one or a list of ppo, .*, got 5"),
        ('environments = ["probe/a"]\nalgo = []', r"algo: expected one or a list of ppo, .*, got \[\]"),
        ('environments = ["probe/a"]\npreset = ["paper"]', r"preset: expected a name.*, got \['paper'\]"),
        ('environments = ["probe/a"]\nname = "../up"', "name: expected a valid folder name, got '../up'"),
        ('environments = ["probe/a"]\nname = ".."', "name: expected a valid folder name, got '..'"),
        ('environments = ["probe/a"]\nname = ""', "name: expected a valid folder name, got ''"),
        ('environments = ["probe/a"]\nname = 3', "name: expected a valid folder name, got 3"),
        ('environments = ["cartpole"]', "environments: expected ids such as four-rooms, gymnax/.*, got 'cartpole'"),
        ('environments = ["foo/bar"]', "environments: expected ids such as .*, got 'foo/bar'"),
        ('environments = ["gym/.."]', r"environments: expected ids such as .*, got 'gym/\.\.'"),
        ('environments = ["four-rooms/x"]', "environments: expected ids such as .*, got 'four-rooms/x'"),
        ('environments = ["probe/a"]\n[environment]\n"probe/a" = 3', "'probe/a': expected a table of fields, got 3"),
        (
            'environments = ["probe/a"]\n[environment."probe/c"]\ngamma = 0.9',
            "'probe/c': expected one of `environments`",
        ),
    ],
)
def test_a_wrong_suite_is_one_line(tmp_path, content, complaint, capsys):
    path = write_toml(tmp_path, content)
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    with pytest.raises(SuiteError, match=complaint):
        load(path)
    assert not (tmp_path / "out").exists()
