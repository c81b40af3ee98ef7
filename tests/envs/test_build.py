"""Ids, options and the messages for wrong ones."""

from __future__ import annotations

import importlib.util
import sys

import jax
import jax.numpy as jnp
import pytest

from nextpolicy.envs import build, gymnax, probes, registry

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse]


def test_names_are_ids_that_carry_their_prefix():
    listed = build.names()
    assert len(listed) == len(set(listed))
    for expected in ("four-rooms", "gymnax/Breakout-MinAtar", "brax/swimmer", "probe/action-observation-continuous"):
        assert expected in listed
    assert build.names("probe") == [f"probe/{name}" for name in probes.names()]
    assert "gymnax/MNISTBandit-bsuite" not in listed
    with pytest.raises(ValueError, match=r"backend: expected one of 'four-rooms', 'gymnax', .*, got 'brix'"):
        build.names("brix")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("gymnax/cartpole-v1", "gymnax/CartPole-v1"),
        ("CartPole-v1", "gymnax/CartPole-v1"),
        ("gymnx/CartPole-v1", "gymnax/CartPole-v1"),
        ("brax/walker", "brax/walker2d"),
        ("four_rooms", "four-rooms"),
        ("probe/discounting", "probe/discount"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest(wrong, nearest):
    with pytest.raises(ValueError) as caught:
        build.make(wrong)
    message = str(caught.value)
    assert repr(wrong) in message
    assert message.partition("nearest: ")[2].split(", ")[0] == nearest
    assert "\n" not in message


@pytest.mark.parametrize("wrong", ["gym/ALE/Breakout-v5", "gym/BreakoutNoFrameskip-v4"])
def test_ids_of_ale_py_are_answered_with_ours(wrong):
    with pytest.raises(ValueError, match=r"; Atari games have ids such as atari/Breakout$"):
        build.make_host(wrong)


def test_listing_atari_does_not_add_its_ids_to_gymnasiums():
    pytest.importorskip("ale_py")
    everything = build.names()
    assert "atari/Breakout" in everything
    assert not [each for each in everything if each.startswith("gym/ALE") or "NoFrameskip" in each]


@pytest.mark.parametrize("wrong", ["", "/", "gymnax", "gymnax/", "four-rooms/", "zzzzzz/qqqqqq"])
def test_what_resembles_nothing_is_still_a_one_line_error(wrong):
    with pytest.raises(ValueError, match="expected a known id") as caught:
        build.make(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["atari/Breakout", "gym/CartPole-v1"])
def test_host_environments_are_told_apart(env_id):
    assert registry.is_host(env_id)
    with pytest.raises(ValueError, match="runs on the host"):
        build.make(env_id)


def test_device_environments_and_objects_are_not_host():
    assert not any(registry.is_host(env) for env in ("four-rooms", "gymnax/CartPole-v1", "brax/ant", "custom/Mine"))


@pytest.mark.parametrize(
    ("env_id", "taken"),
    [
        ("four-rooms", "gamma, goal, noise, start, time_limit"),
        ("gymnax/CartPole-v1", "env_params, force_mag"),
        ("brax/fast", "backend, episode_length, random_start, reset"),
        ("probe/endless", "time_limit"),
        ("probe/constant", "no options"),
    ],
)
def test_an_unknown_option_is_named_with_what_is_taken(env_id, taken):
    with pytest.raises(ValueError, match=f"{env_id}: expected {taken}.*, got option 'colour'"):
        build.make(env_id, colour=1)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("four-rooms", {"noise": "loud"}, "noise: expected one of 'fail', 'third', 'success', 'none', got 'loud'"),
        ("four-rooms", {"time_limit": 0}, "four-rooms time_limit: expected a whole number of at least 1, got 0"),
        ("four-rooms", {"goal": (0, 0)}, "goal: expected a free cell, got .0, 0., a wall"),
        ("brax/fast", {"reset": "warm"}, "brax/fast reset: expected one of 'fresh', 'cached', got 'warm'"),
        ("brax/swimmer", {"backend": "positional"}, "expected one of 'generalized'"),
        ("brax/ant", {"backend": "bullet"}, "expected one of 'positional', 'generalized', 'spring', 'mjx'"),
        ("brax/fast", {"episode_length": 0}, "brax/fast episode_length: expected a whole number of at least 1, got 0"),
        ("probe/nan", {"after": 0}, "probe/nan after: expected a whole number of at least 1, got 0"),
        (
            "gymnax/MNISTBandit-bsuite",
            {},
            "expected an id that `nextpolicy envs` lists, got .*, which downloads a data set",
        ),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_taken(env_id, options, message):
    with pytest.raises(ValueError, match=message):
        build.make(env_id, **options)


@pytest.mark.parametrize(
    ("extra", "package", "env_id"),
    [
        ("gymnax", "gymnax", "gymnax/CartPole-v1"),
        ("brax", "brax", "brax/ant"),
        ("playground", "mujoco_playground", "playground/CheetahRun"),
        ("craftax", "craftax", "craftax/Craftax-Symbolic-v1"),
        ("navix", "navix", "navix/Navix-Empty-5x5-v0"),
    ],
)
def test_a_missing_extra_says_what_to_install(extra, package, env_id, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else find_spec(name, *a))
    monkeypatch.setitem(sys.modules, package, None)  # makes `import` fail as if it were not there
    with pytest.raises(ValueError, match=rf"pip install -e '\.\[{extra}\]' in a checkout"):
        build.make(env_id)
    (entry,) = (name for name in build.names() if name.startswith(extra))
    assert f"cannot import {package}; pip install -e '.[{extra}]' in a checkout of nextpolicy" in entry
    assert "four-rooms" in build.names()


def test_options_reach_constructor_and_parameters():
    env = build.make("gymnax/FourRooms-misc", use_visual_obs=True, fail_prob=0.25, max_steps_in_episode=9)
    assert env.spec.obs_shape == (13, 13, 2)
    assert env.params.fail_prob == 0.25
    assert env.spec.time_limit == 9
    base = env.params.replace(max_steps_in_episode=5)
    assert build.make("gymnax/FourRooms-misc", env_params=base).spec.time_limit == 5


class _Countdown:
    """A user's environment in gymnax's shape with neither `reset_env` nor `is_truncated`."""

    default_params = None

    def reset(self, key, params):
        return jnp.ones(3), jnp.int32(2)

    def step_env(self, key, state, action, params):
        return jnp.zeros(3), state - 1, 1.0 + action, state == 1, {}

    def action_space(self, params):
        return gymnax.import_gymnax().environments.spaces.Discrete(2)

    def observation_space(self, params):
        return gymnax.import_gymnax().environments.spaces.Box(0, 1, (3,))


def test_a_users_environment_object_is_wrapped():
    env = build.make(_Countdown())
    assert env.spec.id == "_Countdown"
    assert env.spec.time_limit is None
    state, obs = env.reset(jax.random.key(0), 2)
    key_first, key_second = jax.random.split(jax.random.key(1))
    state, step = env.step(key_first, state, jnp.array([0, 1]))
    assert not step.terminated.any()
    state, step = env.step(key_second, state, jnp.array([0, 1]))
    assert step.terminated.all()
    assert step.reward.tolist() == [1.0, 2.0]
    assert (step.next_obs == 0).all()
    assert (step.obs == obs).all()


def test_an_object_that_is_no_environment_is_refused():
    with pytest.raises(
        ValueError, match=r"expected a gymnax-style environment.*, got object without reset_env, step_env,"
    ):
        build.make(object())
    with pytest.raises(ValueError, match=r"expected env_params.*, got option 'colour'"):
        build.make(_Countdown(), colour=1)
