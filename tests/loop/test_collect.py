"""Collection with randomness drawn for all steps at once."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from tests.compiling import QUICK

from nextpolicy.envs.base import DeviceEnv
from nextpolicy.loop.collect import collect
from nextpolicy.loop.keys import round_keys
from nextpolicy.loop.population import member_init
from nextpolicy.loop.state import Setup
from nextpolicy.run.job import make_job

from .helpers import assert_same, fetch, member, tiny


class StepByStep:
    """An environment without `draw`."""

    def __init__(self, env: Any) -> None:
        self.spec, self.reset, self.step = env.spec, env.reset, env.step


@pytest.mark.parametrize(
    ("env", "small"), [("gymnax/CartPole-v1", True), ("gymnax/Pendulum-v1", True), ("gymnax/Breakout-MinAtar", False)]
)
def test_drawn_in_advance_or_step_by_step_the_rollout_is_the_same(env: str, small: bool) -> None:
    config = tiny(env=env, rollout_length=40, minibatch_size=32, total_env_steps=1600, torso="mlp")
    job = make_job(config)
    assert job.env._small is small  # type: ignore[union-attr]
    rollout, apart = (fetch(collected(job.setup, job.hypers, e)) for e in (job.env, StepByStep(job.env)))
    assert rollout[1].terminated.any() or env == "gymnax/Pendulum-v1"
    assert_same(rollout, apart)


def collected(setup: Setup, hypers: Any, env: DeviceEnv) -> Any:
    def run() -> Any:
        state = member_init(setup, env, jax.numpy.uint32(0))
        keys = round_keys(state.agent.key, setup.shards)
        return collect(setup, env, member(hypers, 0), state.agent, state.workers, keys)

    return jax.jit(run, compiler_options=QUICK)()
