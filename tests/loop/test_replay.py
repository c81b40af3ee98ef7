"""The replay buffer in both loops: every round fills it, warm-up included, with the environment's true transitions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from nextpolicy.loop.host_loop import HostLoop
from nextpolicy.run.job import make_job

from .helpers import fetch, tiny, train

pytestmark = [pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

# Rounds of 8; two rounds of warm-up, then three; the buffer has room for four.
SAC: dict[str, Any] = {"algo": ("sac",), "num_envs": 2, "rollout_length": 4, "warmup_steps": 8, "replay_size": 32}
SAC |= {"minibatch_size": 4, "updates_per_step": 0.25, "total_env_steps": 8 * 3}


class Counter(gymnasium.Env):
    """The observation is the number of steps taken; the clock cuts each episode after three. Any action does."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, self.steps == 3, {}


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_the_host_loop_fills_it(autoreset: str) -> None:
    job = make_job(tiny(env="custom/toy", env_options={"autoreset": autoreset}, **SAC), env_fn=Counter)
    loop = HostLoop(job.setup, job.hypers, job.env, job.seeds)
    try:
        state, metrics, _ = loop.block(loop.init(job.seeds), 3)
    finally:
        loop.close()
    assert metrics["replay_held"].tolist() == [[24, 32, 32]]
    data = fetch(state.agent.learner.replay.data)
    valid = data.valid[0]
    assert valid.all() == (autoreset == "same-step")
    before, after = data.obs[0, valid, 0], data.next_obs[0, valid, 0]
    assert set(before) == {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(after, before + 1)
    np.testing.assert_array_equal(data.reward[0, valid], after)
    assert not data.terminated.any()


def test_the_device_loop_fills_it() -> None:
    state, metrics = train(tiny(env="gymnax/Pendulum-v1", env_options={}, **SAC), [3])
    assert metrics["replay_held"].tolist() == [[24, 32, 32]]
    data = state.agent.learner.replay.data
    assert data.valid.all()
    # Steps of warm-up are there too: uniform actions in [-2, 2], whereas the first policies act near 0.
    newest, oldest = (np.abs(data.action[0, rows]).max() for rows in (slice(0, 8), slice(8, 16)))
    assert newest < oldest
