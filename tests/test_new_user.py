"""What a new user does on the first day, from the README: train, evaluate, play, report, interrupt, go on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces, wrappers

import nextpolicy
from nextpolicy.cli.main import main
from nextpolicy.envs import build as envs
from run.helpers import environment

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

TINY: dict[str, Any] = {"num_envs": 8, "rollout_length": 16, "minibatch_size": 64, "epochs": 1, "hidden": (8,)}
WAIT = 180.0  # seconds for a process of its own on a busy machine


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    out = tmp_path_factory.mktemp("new-user") / "cartpole"
    return nextpolicy.train("gym/CartPole-v1", total_env_steps=8 * 16 * 3, out=out, quiet=True, **TINY)


class Toy(gymnasium.Env):
    """Any spaces; it ends after a few steps, and takes no action that is not in its space."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


def play(env: gymnasium.Env, policy: Callable[..., Any], episodes: int = 2) -> int:
    """The plain loop of Gymnasium's own documentation, greedy and then by samples; how many steps it took."""
    steps, key = 0, jax.random.key(0)
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            key, drawn = jax.random.split(key)
            action = policy(obs) if episode == 0 else policy(obs, drawn)
            assert env.action_space.contains(action)
            obs, _, terminated, truncated, _ = env.step(action)
            over, steps = terminated or truncated, steps + 1
    return steps


def test_train_evaluate_and_play(cartpole: nextpolicy.Run) -> None:
    assert cartpole.status["state"] == "finished"
    assert len(cartpole.metrics) == 3
    assert cartpole.scores()["score"].notna().all()
    assert (cartpole.evaluate(episodes=2)["episodes"] == 2).all()
    assert play(gymnasium.make("CartPole-v1"), cartpole.policy()) > 10


def test_report_of_one_variant(cartpole: nextpolicy.Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", str(cartpole.path), "--page-only", "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "gym/CartPole-v1" in page
    assert "first scores" not in page, "a finished run has them"
    assert not re.findall(r"Traceback|\bnan\b", capsys.readouterr().err)


BOX, FLAG = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
PAIR, BITS = spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)
TAKEN = {
    "numbers with a start": (spaces.Discrete(5, start=2), spaces.Discrete(3, start=-1)),
    "images and a bounded matrix": (spaces.Box(0, 255, (6, 5, 3), np.uint8), spaces.Box(-0.3, 0.1, (2, 2), np.float64)),
    "parts of both": (spaces.Dict({"a": BOX, "b": spaces.Tuple([FLAG, BITS])}), spaces.Dict({"a": PAIR, "b": FLAG})),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_spaces_that_are_taken(kind: str, tmp_path: Path) -> None:
    make = partial(Toy, *TAKEN[kind])
    run = nextpolicy.train(env_fn=make, out=tmp_path / "run", quiet=True, total_env_steps=8 * 16, torso="mlp", **TINY)
    assert play(make(), run.policy()) == 10


REFUSED = {
    "Text": (spaces.Dict({"a": BOX, "b": spaces.Text(3)}), FLAG),
    "Sequence": (spaces.Sequence(FLAG), FLAG),
    "actions of Tuple": (BOX, spaces.Tuple([FLAG, BOX])),
    "actions of Box": (BOX, spaces.Box(0, 3, (2,), np.int64)),
}
# What the message advises, done: the arguments of the wrapper.
ADVISED: dict[str, tuple[Any, ...]] = {
    "Text": (),
    "Sequence": (lambda obs: np.full(1, len(obs), np.float32), spaces.Box(0, np.inf, (1,))),
    "actions of Tuple": (lambda i: (i, np.zeros(2, np.float32)), FLAG),
    "actions of Box": (lambda i: np.full(2, i), FLAG),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_spaces_that_are_refused_say_which_wrapper_helps(kind: str, tmp_path: Path) -> None:
    make = partial(Toy, *REFUSED[kind])
    with pytest.raises(ValueError, match=rf"expected .*, got .*{kind.split()[-1]}.*; wrap it in ") as caught:
        nextpolicy.train(env_fn=make, out=tmp_path / "run", quiet=True, total_env_steps=8 * 16, **TINY)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    (name,) = re.findall(r"gymnasium\.wrappers\.(\w+)", str(caught.value))
    wrapper = getattr(wrappers, name)
    wrapped = partial(lambda: wrapper(make(), *ADVISED[kind]))
    pool = envs.make_host(wrapped).start(2)
    pool.reset(seed=0)
    pool.send(np.ones(2, np.int32))
    assert pool.recv().reward.tolist() == [1.0, 1.0]
    pool.close()


def interrupted(out: Path, fields: dict[str, Any]) -> tuple[int, str]:
    """Exit code and stderr of `nextpolicy train` that gets a ctrl-C once something is on disk."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    # A test that runs in the background of a shell inherits that SIGINT is ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from nextpolicy.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "train", "gymnax/CartPole-v1", "--out", str(out), "--quiet", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        until = time.monotonic() + WAIT
        while process.poll() is None and len(list(out.glob("metrics/*.parquet"))) < 2:
            assert time.monotonic() < until, "nothing was trained"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT)
    return process.returncode, said


@pytest.mark.slow  # run/test_bad_days.py has it in parts: a signal, a process that gets one, a resume
def test_ctrl_c_and_resume_equal_an_undisturbed_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fields: dict[str, Any] = {**TINY, "hidden": 8, "total_env_steps": 8 * 16 * 20, "block_rounds": 1, "devices": 1}
    out = tmp_path / "stopped"
    code, said = interrupted(out, fields)
    assert code == 130, said
    assert "Traceback" not in said
    assert f"nextpolicy resume {out}" in said.strip().splitlines()[-1]
    status = json.loads((out / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "stopped"
    assert 2 <= status["rounds_done"] < 20
    assert main(["resume", str(out), "--quiet"]) == 0
    capsys.readouterr()
    whole = nextpolicy.train("gymnax/CartPole-v1", out=tmp_path / "whole", quiet=True, **{**fields, "hidden": (8,)})
    again = nextpolicy.load(out)
    assert again.status["state"] == "finished"
    drop = ["steps_per_second"]
    pd.testing.assert_frame_equal(again.metrics.drop(columns=drop), whole.metrics.drop(columns=drop), check_exact=True)
