"""Gymnasium environments: the same streams as by hand, true final observations, and failures that end cleanly."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from nextpolicy.envs import build
from nextpolicy.envs import gymnasium as gymnasium_adapter
from nextpolicy.envs.base import Box, Discrete, HostEnvError
from nextpolicy.envs.driver import Driver

sys.path.insert(0, str(Path(__file__).parent))
from host_toys import Counter, Spaces

MODES = [("sync", "same-step"), ("sync", "next-step"), ("async", "same-step"), ("async", "next-step")]


def by_hand(env_id, seed, actions, **arguments):
    """(successor, reward, terminated, truncated, what is seen next) of one environment, step by step."""
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    first, _ = env.reset(seed=seed)
    rows = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen = env.reset()[0] if terminated or truncated else obs
        rows.append((obs, reward, terminated, truncated, seen))
    env.close()
    return first, rows


@pytest.mark.parametrize(("vectorization", "autoreset"), MODES)
def test_streams_are_those_of_the_environment_stepped_by_hand(vectorization, autoreset):
    env = build.make_host("gym/CartPole-v1", vectorization=vectorization, autoreset=autoreset, max_episode_steps=14)
    pool = env.start(2)
    try:
        seen = pool.reset(seed=11)
        actions = np.random.default_rng(0).integers(0, 2, (150, 2))
        taken = [[], []]  # per environment: (obs acted in, action) and what came of it, artefacts left out
        for t in range(150):
            pool.send(actions[t].astype(np.int32))
            step = pool.recv()
            successor = step.obs.copy()
            if step.final_obs is not None:
                successor[step.final_index] = step.final_obs
            for i in range(2):
                if step.valid[i]:
                    end = (bool(step.terminated[i]), bool(step.truncated[i]))
                    taken[i].append((seen[i], actions[t, i], successor[i], step.reward[i], *end))
            seen = step.obs
    finally:
        pool.close()
    for i in range(2):
        first, rows = by_hand("CartPole-v1", 11 + i, [row[1] for row in taken[i]], max_episode_steps=14)
        expected = [first, *(row[4] for row in rows)]
        for before, mine, (obs, reward, terminated, truncated, _) in zip(expected, taken[i], rows, strict=False):
            np.testing.assert_array_equal(mine[0], before.astype(np.float32))
            np.testing.assert_array_equal(mine[2], obs.astype(np.float32))
            assert mine[3:] == (reward, terminated, truncated and not terminated)
        ends = [row for row in taken[i] if row[4] or row[5]]
        assert any(row[4] for row in ends), "death was not tried"
        assert any(row[5] for row in ends), "the time limit was not tried"
        artefacts = len(ends) - any(taken[i][-1][4:])  # the one after the very last end is not seen any more
        assert len(taken[i]) == (150 if autoreset == "same-step" else 150 - artefacts)


def test_the_native_vector_environment_is_read_by_its_own_autoreset_mode():
    env = build.make_host("gym/CartPole-v1", vectorization="native")
    assert not env.resets_in_step
    pool = env.start(3)
    pool.reset(seed=0)
    steps = []
    for _ in range(80):
        pool.send(np.zeros(3, np.int32))
        steps.append(pool.recv())
    pool.close()
    over, valid = np.stack([s.episode_over for s in steps]), np.stack([s.valid for s in steps])
    assert over.sum() >= 3
    np.testing.assert_array_equal(valid[1:], ~over[:-1])
    assert np.stack([s.reward for s in steps])[~valid].sum() == 0


def test_a_native_vector_environment_that_resets_within_the_step_keeps_its_final_observations():
    env = build.make_host("gym/HostToys/CounterVector-v0", vectorization="native")
    assert env.resets_in_step
    pool = env.start(2)
    pool.reset(seed=0)
    step(pool, 2)
    pool.send(np.zeros(2, np.int32))
    last = pool.recv()
    pool.close()
    np.testing.assert_array_equal(last.obs, np.zeros((2, 1)))
    np.testing.assert_array_equal(last.final_obs, np.full((2, 1), 3.0))
    np.testing.assert_array_equal(last.final_index, [0, 1])
    assert last.truncated.all()
    assert last.valid.all()


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_the_same_seed_gives_the_same_stream(autoreset):
    def stream(seed):
        pool = build.make_host("gym/Acrobot-v1", autoreset=autoreset).start(2)
        parts = [pool.reset(seed)]
        for t in range(30):
            pool.send(np.full(2, t % 3, np.int32))
            parts.append(pool.recv().obs)
        pool.close()
        return np.stack(parts)

    np.testing.assert_array_equal(stream(5), stream(5))
    assert not np.array_equal(stream(5), stream(6))


def test_spaces_become_what_networks_read():
    pendulum = build.make_host("gym/Pendulum-v1")
    assert pendulum.spec.obs_shape == (3,)
    assert pendulum.spec.time_limit == 200
    assert isinstance(pendulum.spec.action, Box)
    assert (pendulum.spec.action.low, pendulum.spec.action.high) == (-2.0, 2.0)
    lake = build.make_host("gym/FrozenLake-v1")
    assert lake.spec.obs_shape == (16,)
    np.testing.assert_array_equal(lake.arrange(jnp.asarray([0, 15])), np.eye(16)[[0, 15]])
    shifted = toy(spaces.Discrete(3, start=-1), spaces.Discrete(2))
    np.testing.assert_array_equal(shifted.arrange(jnp.asarray([-1, 1])), np.eye(3)[[0, 2]])
    single = toy(spaces.Box(0, 1, ()), spaces.Discrete(2))
    assert single.spec.obs_shape == (1,)
    assert single.arrange(jnp.asarray([0.5, 1.0])).shape == (2, 1)


def step(pool, times):
    for _ in range(times):
        pool.send(np.zeros(2, np.int32))
        pool.recv()


def toy(observation_space, action_space, **options):
    return build.make_host(partial(Spaces, observation_space, action_space), **options)


def test_observations_keep_bytes_and_put_channels_last():
    image = spaces.Box(0, 255, (4, 9, 8), np.uint8)
    env = toy(image, spaces.Discrete(2), channels_first=True)
    assert (env.spec.obs_shape, env.spec.obs_dtype) == ((9, 8, 4), np.uint8)
    pool = env.start(2)
    obs = pool.reset(seed=0)
    assert obs.dtype == np.uint8
    np.testing.assert_array_equal(env.arrange(jnp.asarray(obs)), np.moveaxis(obs, 1, -1))
    pool.close()
    counts = toy(spaces.Box(-5, 5, (3,), np.int64), spaces.Discrete(2))
    assert counts.arrange(jnp.asarray([[1, 2, 3]])).dtype == jnp.float32
    for kind, across in ((np.int64, np.int32), (np.float64, np.float32)):  # eight bytes are not sent to the device
        pool = toy(spaces.Box(-5, 5, (3,), kind), spaces.Discrete(2)).start(2)
        assert pool.reset(seed=0).dtype == across
        pool.send(np.zeros(2, np.int32))
        assert pool.recv().obs.dtype == across
        pool.close()


def test_actions_are_clipped_and_counted_from_where_the_space_starts():
    real = toy(spaces.Box(0, 1, (2,)), spaces.Box(np.asarray([-1.0, 0.0]), np.asarray([1.0, 3.0]), dtype=np.float64))
    pool = real.start(1)
    pool.reset(seed=0)
    pool.send(np.asarray([[-9.0, 9.0]], np.float32))
    pool.recv()
    np.testing.assert_array_equal(pool._vector.envs[0].got[0], [-1.0, 3.0])
    pool.close()
    counted = toy(spaces.Box(0, 1, (2,)), spaces.Discrete(3, start=-1))
    assert counted.spec.action == Discrete(3, start=-1)
    pool = counted.start(1)
    pool.reset(seed=0)
    pool.send(np.zeros(1, np.int32))
    pool.recv()
    assert pool._vector.envs[0].got == [-1]
    pool.close()


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            spaces.Discrete(10**9),
            spaces.Discrete(2),
            r"expected observations of Discrete\(n\) with n at most 1000000, got",
        ),
        (spaces.Box(0, 1, (0,)), spaces.Discrete(2), "expected observations of one number or more, got a Box of shape"),
        (None, spaces.Discrete(2), "expected an observation space, got none; set self.observation_space"),
        (
            spaces.Box(0, 1, (2,)),
            spaces.Discrete(10**9),
            r"expected actions of Discrete\(n\) with n at most 1000000, got",
        ),
        (
            spaces.Box(0, 1, (2,)),
            spaces.Box(0, 3, (2,), np.int32),
            "expected actions of .* or Tuple, got a Box of int32; wrap it in",
        ),
    ],
)
def test_other_spaces_are_refused_in_one_line(observation, action, message):
    with pytest.raises(ValueError, match=message) as caught:
        toy(observation, action)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("gym/CartPole-v2", {}, "nearest: gym/CartPole-v1"),
        ("gym/cartpole-v1", {}, "nearest: gym/CartPole-v1"),
        ("gym/", {}, "expected a known id, got 'gym/'"),
        (
            "gym/no_such_module:X-v0",
            {},
            "expected a module that can be imported .*:X-v0' .ModuleNotFoundError",
        ),
        ("gym/CartPole-v1", {"vectorization": "threads"}, "expected one of 'sync', 'async', 'native', got 'threads'"),
        ("gym/CartPole-v1", {"autoreset": "never"}, "expected one of 'same-step', 'next-step', got 'never'"),
        ("gym/CartPole-v1", {"worker_timeout": "soon"}, "worker_timeout: expected a number of at least 0, got 'soon'"),
        ("gym/CartPole-v1", {"worker_timeout": 0}, r"worker_timeout: expected seconds in \(0, 1e.09\].*, got 0"),
        ("gym/CartPole-v1", {"worker_timeout": 1e10}, r"expected seconds in \(0, 1e.09\].*, got 1e.10"),
        ("gym/CartPole-v1", {"groups": -1}, "groups: expected a whole number of at least 0, got -1"),
        ("gym/CartPole-v1", {"groups": 0}, "groups: expected a whole number of at least 1, got 0"),
        (
            "gym/CartPole-v1",
            {"vectorization": "native", "autoreset": "same-step"},
            "autoreset: expected its native 'next-step', got 'same-step'",
        ),
        (
            "gym/CartPole-v1",
            {"channels_first": True},
            r"expected images \[C, H, W\].*, got observations of shape \(4,\)",
        ),
        (
            "gym/MountainCar-v0",
            {"vectorization": "native"},
            "expected 'sync' or 'async', got 'native', which",
        ),
    ],
)
def test_wrong_ids_and_options_are_one_line(env_id, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build.make_host(env_id, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_fn", "message"),
    [
        (lambda: 3, "expected one gymnasium.Env from each call, got int"),
        (lambda: Counter, "expected one gymnasium.Env from each call, got type"),
        (
            lambda: gymnasium.make_vec("CartPole-v1", 2),
            "expected one gymnasium.Env .*, got a vector environment",
        ),
    ],
)
def test_a_callable_that_makes_something_else_is_one_line(env_fn, message):
    with pytest.raises(ValueError, match=message):
        build.make_host(env_fn)


def test_an_argument_the_environment_does_not_take_is_one_line():
    with pytest.raises(HostEnvError, match=r"gym/CartPole-v1: start raised .*colour") as caught:
        build.make_host("gym/CartPole-v1", colour=3)
    assert "\n" not in str(caught.value)


def test_what_we_pass_ourselves_may_be_passed():
    assert build.make_host("gym/CartPole-v1", disable_env_checker=False).spec.obs_shape == (4,)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[gymnasium\]' in a checkout"):
        build.make_host("gym/CartPole-v1")
    # Only this backend: ale-py, if first imported without Gymnasium, would stay without its vector environment.
    assert any("pip install -e '.[gymnasium]' in a checkout of nextpolicy" in name for name in build.names("gym"))


def test_an_environment_that_a_module_registers_is_found_by_module_and_id(tmp_path, monkeypatch):
    (tmp_path / "my_suite.py").write_text(
        "import gymnasium\nfrom host_toys import Counter\n"
        "gymnasium.register('Mine/Count-v3', entry_point=Counter, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = build.make_host("gym/my_suite:Mine/Count-v3", length=100)
    assert env.spec.id == "gym/my_suite:Mine/Count-v3"
    assert env.spec.time_limit == 4
    assert "gym/CartPole-v1" in build.names("gym")


@pytest.mark.filterwarnings("ignore:(?s).*ERROR:UserWarning")  # Gymnasium repeats a worker's traceback as warnings
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"step raised ValueError: the motor is on fire$"),
        ("hang", "step did not return within worker_timeout"),
    ],
)
def test_an_environment_that_fails_is_one_line_in_good_time(vectorization, fault, message):
    env = build.make_host(partial(Counter, fault=fault, at=3), vectorization=vectorization, worker_timeout=20.0)
    pool = env.start(2)
    env.timeout = pool._thread.timeout = 1.5  # starting processes may take longer than that, a step may not
    pool.reset(seed=0)
    started = time.monotonic()
    with pytest.raises(HostEnvError, match=message) as caught:
        step(pool, 3)
    children = list(pool._children)
    pool.close()
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("env ")), "one would outlive the program"
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 10
    assert len(children) == (2 if vectorization == "async" else 0)
    assert not any(child.is_alive() for child in children)
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:(?s).*ERROR:UserWarning")
@pytest.mark.parametrize(
    ("vectorization", "fault", "message"),
    [
        ("sync", "raise", "reset raised ValueError: the motor is on fire$"),
        ("sync", "hang", "reset did not return within worker_timeout"),
        ("async", "hang", "reset did not return within worker_timeout"),
        ("async", "exit", "a worker process died during reset"),
    ],
)
def test_an_environment_that_fails_to_reset_is_one_line_in_good_time(vectorization, fault, message):
    env = build.make_host(partial(Counter, fault=fault, at=1, where="reset"), vectorization=vectorization)
    pool = env.start(2)
    assert pool._patience == 60 + 2
    pool._patience = 1.0
    started = time.monotonic()
    with pytest.raises(HostEnvError, match=message):
        pool.reset(seed=0)
    pool.close()
    assert time.monotonic() - started < 10
    assert not multiprocessing.active_children()


def test_an_environment_that_hangs_at_the_start_or_in_close_is_given_up():
    with pytest.raises(HostEnvError, match=r"custom/slow: start did not return within worker_timeout, 0.2 s"):
        build.make_host(slow, worker_timeout=0.2)

    class Sticky(Counter):
        def close(self):
            time.sleep(60)

    gymnasium_adapter.CLOSE_SECONDS, usual = 0.2, gymnasium_adapter.CLOSE_SECONDS
    try:
        started = time.monotonic()
        pool = build.make_host(Sticky).start(1)
        pool.close()
        assert time.monotonic() - started < 5
    finally:
        gymnasium_adapter.CLOSE_SECONDS = usual


def slow():
    time.sleep(60)


def slow_in_a_worker():
    if multiprocessing.parent_process() is not None:
        time.sleep(60)
    return Counter()


def test_workers_that_hang_at_the_start_are_ended():
    env = build.make_host(slow_in_a_worker, vectorization="async")
    env.timeout = 1.0
    with pytest.raises(HostEnvError, match="start did not return within worker_timeout, 2 s"):
        env.start(1)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_one_line():
    pool = build.make_host(partial(Counter, fault="exit", at=2), vectorization="async").start(2)
    pool.reset(seed=0)
    with pytest.raises(HostEnvError, match="a worker process died during step"):
        step(pool, 2)
    pool.close()
    assert not multiprocessing.active_children()


def test_closing_ends_the_thread_and_may_be_repeated():
    pool = build.make_host("gym/CartPole-v1").start(2)
    pool.reset(seed=0)
    pool.send(np.zeros(2, np.int32))
    pool.close()
    pool.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(t.name == "env gym/CartPole-v1" for t in threading.enumerate()):
        time.sleep(0.02)
    assert not any(t.name == "env gym/CartPole-v1" for t in threading.enumerate())


def test_a_pool_draws_itself_if_the_environment_can():
    assert not build.make_host(Counter).can_render

    class Drawable(Counter):  # could, but was not made to
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    assert not build.make_host(Drawable).can_render
    env = build.make_host("gym/CartPole-v1")
    assert env.can_render


@pytest.mark.parametrize(
    ("picture", "got"),
    [
        (np.full((4, 5, 3), 200, np.int64), None),
        (None, r"object of shape \(\)"),
        (np.ones((4, 5, 3)), "float64"),
        (np.zeros((4, 5), np.uint8), r"uint8 of shape \(4, 5\)"),
        (np.zeros((4, 5, 4), np.uint8), r"uint8 of shape \(4, 5, 4\)"),
    ],
)
def test_a_picture_is_whole_numbers_of_three_colours(picture, got):
    class Drawn(Counter):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        render_mode = "rgb_array"

        def render(self):
            return picture

    pool = build.make_host(Drawn).start(1, render=True)
    pool.reset(seed=0)
    try:
        if got is None:
            frame = pool.render()
            assert (frame.shape, frame.dtype, frame.max()) == ((4, 5, 3), np.uint8, 200)
        else:
            with pytest.raises(HostEnvError, match=f"expected render to return integers .*, got {got}"):
                pool.render()
    finally:
        pool.close()


def test_a_reset_starts_anew_after_the_end_of_an_episode():
    pool = build.make_host(partial(Counter, length=2), autoreset="next-step").start(2)
    pool.reset(seed=0)
    step(pool, 2)
    pool.reset(seed=0)
    pool.send(np.zeros(2, np.int32))
    assert pool.recv().valid.all()
    pool.close()


@pytest.mark.parametrize("fault", [None, "raise"])
def test_environments_are_closed_with_their_pool_even_after_a_failure(fault):
    closed = []

    class Tidy(Counter):
        def close(self):
            closed.append(self)

    env = build.make_host(partial(Tidy, fault=fault, at=1))
    closed.clear()  # of the one that was only looked at
    pool = env.start(2)
    pool.reset(seed=0)
    pool.send(np.zeros(2, np.int32))
    with pytest.raises(HostEnvError) if fault else contextlib.nullcontext():
        pool.recv()
    pool.close()
    assert len(closed) == 2


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError])
def test_a_broken_connection_is_a_worker_that_died(error):
    driver = Driver("gym/toy", timeout=5.0)

    def work():
        raise error

    with pytest.raises(HostEnvError, match=r"^gym/toy: a worker process died during step$"):
        driver.call("step", work)
    with pytest.raises(HostEnvError, match=r"died during start; a script needs `if __name__ == '__main__':`"):
        driver.call("start", work)
    driver.stop()


def test_a_driver_says_when_it_was_done_and_lets_go_of_what_it_did():
    driver = Driver("toy", timeout=5.0)
    toy = Counter()
    gone = weakref.ref(toy)
    driver.submit(lambda toy=toy: toy.reset() and None)
    time.sleep(0.1)
    before = time.perf_counter()
    driver.wait("reset")
    assert 0 < driver.finished_at < before
    del toy
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    driver.stop()
