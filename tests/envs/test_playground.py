"""The MuJoCo Playground adapter: time limits, repeated actions, divergence, options and errors.

A stand-in ends or diverges when told to. The physics is compared with Playground stepped by hand.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build, playground

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.skipif(
        importlib.util.find_spec("mujoco_playground") is None, reason="the extra `playground` is not installed"
    ),
]


class _Toy:
    """Is done for one control step where the action is 1 and at age 2, and diverges where the action is -1.

    The part of the observation that policies read is (random start, age, sum of the ages before), the sum being kept
    only there.
    """

    action_size = 1

    def reset(self, rng):
        from mujoco_playground import State

        start = jax.random.uniform(rng)
        obs = {"state": jnp.stack([start, 0.0, 0.0]), "privileged_state": jnp.zeros(7)}
        return State(jnp.zeros(()), obs, 0.0, 0.0, {"noted": jnp.zeros(())}, {"rng": rng, "start": start})

    def step(self, state, action):
        start, age, total = state.obs["state"]
        data = jnp.where(action[0] == -1, jnp.nan, state.data + 1)
        obs = {"state": jnp.stack([start, data, total + age]), "privileged_state": jnp.ones(7)}
        state.metrics["noted"] = data
        done = jnp.where(jnp.isnan(data) | ((action[0] == 1) & (data == 2)), 1.0, 0.0)
        return state.replace(data=data, obs=obs, reward=data, done=done)


def toy(episode_length=1000, action_repeat=1):
    return playground.PlaygroundEnv(
        _Toy(), "playground/toy", episode_length, action_repeat, cached=False, random_start=False
    )


def play(env, actions):
    """First observations [N, 3], and the steps, each [N, ...], of actions [T, N]."""
    state, first = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), len(actions[0]))
    take_step, steps = jax.jit(env.step), []
    for t, action in enumerate(actions):
        state, step = take_step(jax.random.key(t + 1), state, jnp.asarray(action)[:, None])
        steps.append(jax.device_get(step))
    return np.asarray(first), steps


def test_the_limit_counts_control_steps_and_keeps_the_true_successor():
    env = toy(episode_length=7, action_repeat=3)
    assert env.spec.time_limit == 3  # 9 control steps are the first multiple of 3 from 7 on, as in Playground's wrapper
    assert env.spec.obs_shape == (3,)
    first, steps = play(env, [[0.0, 0.0]] * 3)
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(step.terminated.any() for step in steps)
    assert [step.reward[0] for step in steps] == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9]
    for start, successor, restart in zip(first, steps[-1].next_obs, steps[-1].obs):
        np.testing.assert_array_equal(successor, [start[0], 9.0, sum(range(9))])
        np.testing.assert_array_equal(restart[1:], [0.0, 0.0])
        assert restart[0] != start[0]


def test_the_first_done_among_repeats_terminates_and_later_rewards_do_not_count():
    _, (step,) = play(toy(action_repeat=3), [[0.0, 1.0]])
    assert step.terminated.tolist() == [False, True]
    assert step.reward.tolist() == [1 + 2 + 3, 1 + 2]
    assert not step.truncated.any()


def test_a_diverged_simulation_terminates_with_finite_numbers():
    first, steps = play(toy(), [[0.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    assert [step.terminated.tolist() for step in steps] == [[False] * 2, [False, True], [False] * 2]
    assert [step.reward.tolist() for step in steps] == [[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]
    np.testing.assert_array_equal(steps[1].next_obs[1], [first[1, 0], 1.0, 0.0])
    np.testing.assert_array_equal(steps[1].obs[1, 1:], [0.0, 0.0])
    assert all(np.isfinite(leaf).all() for step in steps for leaf in jax.tree.leaves(step))


def test_actions_are_clipped_before_the_simulator_sees_them():
    _, (step,) = play(toy(action_repeat=2), [[50.0, 0.5]])
    assert step.terminated.tolist() == [True, False]


def test_arrays_of_all_environments_and_empty_ones_are_not_carried():
    """As in Warp's data, `contacts` has one list for all environments, whether mapped over them or not."""

    @jax.custom_batching.custom_vmap
    def contacts(x):
        return jnp.ones((5, 2)) + 0.0 * x

    contacts.def_vmap(lambda *_: (jnp.ones((5, 2)), True))

    class Holder(NamedTuple):
        data: dict[str, jax.Array]

    def reset(key):
        x = jax.random.uniform(key, (3,))
        return Holder({"contacts": contacts(x[0]), "none": jnp.zeros((0, 4)), "x": x})

    physics = playground._Physics(reset)
    carried = physics.carried({"contacts": jnp.ones((5, 2)), "none": jnp.zeros((0, 4)), "x": jnp.arange(3.0)})
    (x,) = carried
    assert x.tolist() == [0.0, 1.0, 2.0]
    whole = physics.whole(carried)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.sum()), whole) == {
        "contacts": ((5, 2), 0.0),
        "none": ((0, 4), 0.0),
        "x": ((3,), 3.0),
    }


def test_names_are_those_of_the_package():
    registry = playground.import_playground().registry
    assert tuple(playground.names()) == registry.ALL_ENVS
    assert len(playground.CONTROL_SUITE) == 25


@pytest.fixture
def loads_toy(monkeypatch):
    """`registry.load` keeps the config that it is given, with the overrides applied, and returns the stand-in."""
    configs = []

    def load(name, config, config_overrides):
        config.update_from_flattened_dict(config_overrides)
        configs.append(config)
        return _Toy()

    monkeypatch.setattr(playground.import_playground().registry, "load", load)
    return configs


def test_options_are_entries_of_the_config(loads_toy):
    options = {"episode_length": 11, "action_repeat": 2, "reward_config.scales.termination": -2}
    env = build.make("playground/Go1JoystickFlatTerrain", reset="cached", **options)
    (config,) = loads_toy
    assert (config.impl, config.reward_config.scales.termination) == ("jax", -2.0)
    assert env.spec.time_limit == 6
    assert env._cached


WRONG = [
    (
        {"episode_lenght": 5},
        r"expected action_repeat, .*, got option 'episode_lenght'; did you mean 'episode_length'\?",
    ),
    ({"vision": True}, "got option 'vision'"),
    ({"vision_config.nworld": 4}, "got option 'vision_config.nworld'"),
    ({"impl": "c"}, "playground/CartpoleBalance impl: expected one of 'jax', 'warp', got 'c'"),
    ({"reset": "warm"}, "reset: expected one of 'fresh', 'cached', got 'warm'"),
    ({"episode_length": 0}, "episode_length: expected a whole number of at least 1, got 0"),
    ({"action_repeat": 0}, "action_repeat: expected a whole number of at least 1, got 0"),
    ({"ctrl_dt": 0}, "ctrl_dt, sim_dt: expected ctrl_dt to be a multiple of sim_dt, both above 0, got 0 and 0.01"),
    ({"ctrl_dt": 0.015}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got 0.015 and 0.01"),
    ({"ctrl_dt": 0.004}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got 0.004 and 0.01"),
    ({"ctrl_dt": -1}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got -1 and 0.01"),
    ({"sim_dt": 0}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got 0.01 and 0"),
    ({"sim_dt": "fast"}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got 0.01 and 'fast'"),
    ({"ctrl_dt": True}, "expected ctrl_dt to be a multiple of sim_dt, both above 0, got True and 0.01"),
    ({"episode_length": "long"}, r"cannot be made with episode_length='long' \("),
]


@pytest.mark.usefixtures("loads_toy")
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build.make("playground/CartpoleBalance", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (False, "impl: expected the package warp-lang for 'warp', got none; pip install warp-lang"),
        (True, "impl: expected a GPU for 'warp', got cpu; use impl=jax"),
    ],
)
def test_warp_needs_its_package_and_a_gpu(installed, message, monkeypatch):
    find_spec = importlib.util.find_spec
    found = find_spec("jax") if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: found if name == "warp" else find_spec(name, *a))
    with pytest.raises(ValueError, match=message):
        build.make("playground/CartpoleBalance", impl="warp")


@pytest.mark.usefixtures("loads_toy")
def test_warp_is_passed_on_where_it_can_run(loads_toy, monkeypatch):
    monkeypatch.setattr(playground, "_check_impl", lambda *_: None)
    build.make("playground/CartpoleBalance", impl="warp")
    assert loads_toy[0].impl == "warp"


@pytest.mark.parametrize("name", ["Go1Handstand", "PandaPickCube"])
def test_models_that_cannot_be_downloaded_are_one_line(name, tmp_path, monkeypatch, capsys):
    playground.import_playground()
    from mujoco_playground._src import mjx_env

    def clone(*_):
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(mjx_env, "EXTERNAL_DEPS_PATH", tmp_path)
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", tmp_path / "models")
    monkeypatch.setattr(mjx_env, "_clone_with_progress", clone)
    with pytest.raises(
        ValueError, match=f"{name}: expected MuJoCo Menagerie's models.*128.*{tmp_path}/models$"
    ) as error:
        build.make(f"playground/{name}")
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_a_model_that_an_implementation_cannot_run_names_the_other(monkeypatch):
    def load(*_, **__):
        raise NotImplementedError("no cylinders")

    monkeypatch.setattr(playground.import_playground().registry, "load", load)
    with pytest.raises(ValueError, match=r"a model that impl=jax can run; try impl=warp \(no cylinders\)"):
        build.make("playground/CartpoleBalance")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PendulumSwingup", "CartpoleSwingup", "ReacherEasy", "CheetahRun"])
def test_steps_are_those_of_playground_stepped_by_hand(name):
    """Playground's own complete state, metrics and all, against the part of it that the adapter carries."""
    env = build.make(f"playground/{name}")
    raw, num_envs = env.env, 2
    state, obs = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), num_envs)
    key_current = jax.random.split(jax.random.key(0), 2)[0]
    by_hand = jax.jit(jax.vmap(raw.reset))(jax.random.split(key_current, 2 * num_envs)[:num_envs])
    np.testing.assert_allclose(obs, by_hand.obs, rtol=1e-3, atol=1e-3)  # a reset may simulate until the robot rests
    step, raw_step = jax.jit(env.step), jax.jit(jax.vmap(raw.step))
    for t in range(4):
        action = jax.random.uniform(jax.random.key(t), (num_envs, *env.spec.action.shape), minval=-1.0, maxval=1.0)
        by_hand = raw_step(by_hand, action)
        state, out = step(jax.random.key(t), state, action)
        np.testing.assert_allclose(out.next_obs, by_hand.obs, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(out.reward, by_hand.reward, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(out.terminated, by_hand.done.astype(bool))


@pytest.mark.slow
def test_making_an_environment_says_nothing_and_leaves_no_file(tmp_path: Path):
    code = "from nextpolicy.envs import build; build.make('playground/PendulumSwingup')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
