"""Atari games on real emulators: lives, limits, artefacts, rewards, seeds and frames."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib import resources
from itertools import pairwise
from types import SimpleNamespace

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from ale_py import roms

from nextpolicy.config import presets
from nextpolicy.envs import atari, build
from nextpolicy.envs.base import Discrete, HostEnvError

PAPER = resources.files("nextpolicy") / "data" / "paper" / "atari_static.csv"
PAPER_GAMES = [line.split(",")[0] for line in PAPER.read_text().splitlines()[1:]]
SMALL = {"image_size": 12, "threads": 2}  # the emulator's work is the same, the copying is not


def play(env, seed, actions):
    """First observations and the steps of a pool under given actions [T, N]."""
    pool = env.start(actions.shape[1])
    first = pool.reset(seed)
    steps = []
    for action in actions:
        pool.send(action.astype(np.int32))
        steps.append(pool.recv())
    pool.close()
    return first, steps


def column(steps, name):
    return np.stack([getattr(step, name) for step in steps])


def random_actions(env, length, num_envs, seed=0):
    return np.random.default_rng(seed).integers(0, env.spec.action.n, (length, num_envs))


def scores(steps):
    """Returns of the finished games of each environment, in order."""
    finished, running = [], np.zeros(len(steps[0].score))
    for step in steps:
        running += np.where(step.valid, step.score, 0.0)
        finished += [(int(i), float(running[i])) for i in np.flatnonzero(step.episode_over)]
        running[step.episode_over] = 0.0
    return finished


@pytest.fixture(scope="module")
def breakout():
    """The same actions in Breakout with lives as ends and without, long enough for several games."""
    with_lives = build.make_host("atari/Breakout", **SMALL)
    without = build.make_host("atari/Breakout", episodic_life=False, **SMALL)
    actions = random_actions(with_lives, 500, 2)
    return play(with_lives, 7, actions), play(without, 7, actions)


def test_a_lost_life_is_an_end_to_learn_from_and_scores_are_of_whole_games(breakout):
    (first, lives), (first_whole, whole) = breakout
    np.testing.assert_array_equal(first, first_whole)
    for name in ("obs", "score", "reward", "episode_over", "valid"):
        np.testing.assert_array_equal(column(lives, name), column(whole, name), err_msg=name)
    games = scores(lives)
    assert games == scores(whole)
    assert len(games) >= 3
    assert sum(score for _, score in games) > 0
    # Breakout has five lives: a game is four lost lives and an end.
    assert column(whole, "terminated").sum() == column(whole, "episode_over").sum() == len(games)
    ends = column(lives, "terminated")
    for i in range(2):
        overs = np.flatnonzero(column(lives, "episode_over")[:, i])
        parts = np.split(ends[:, i], overs + 1)[:-1]
        assert [part.sum() for part in parts] == [5] * len(overs)


def test_only_the_step_after_a_game_is_an_artefact(breakout):
    (_, steps), _ = breakout
    valid, over = column(steps, "valid"), column(steps, "episode_over")
    assert valid[0].all()
    np.testing.assert_array_equal(valid[1:], ~over[:-1])
    assert not column(steps, "terminated")[~valid].any()
    assert column(steps, "score")[~valid].sum() == 0
    assert all(step.next_obs is None and step.final_obs is None for step in steps)


def test_a_time_limit_truncates_and_does_not_terminate():
    env = build.make_host("atari/Breakout", max_frames=40, **SMALL)
    assert env.spec.time_limit == 10
    _, steps = play(env, 0, random_actions(env, 35, 2))
    truncated = column(steps, "truncated")
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 0]), [9, 20, 31])  # ten steps, then the artefact
    assert not (truncated & column(steps, "terminated")).any()
    np.testing.assert_array_equal(column(steps, "episode_over"), truncated)
    assert not column(steps, "valid")[10].any()


def test_a_reset_starts_anew_after_the_end_of_a_game():
    env = build.make_host("atari/Breakout", max_frames=8, **SMALL)
    pool = env.start(1)
    for _ in range(2):
        pool.reset(seed=0)
        steps = []
        for _ in range(2):
            pool.send(np.zeros(1))
            steps.append(pool.recv())
        assert column(steps, "valid").all()
        assert steps[-1].truncated.all()
    pool.close()


def test_every_option_reaches_the_emulator(monkeypatch):
    made = []

    class Recorder:
        single_action_space = SimpleNamespace(n=4)

        def __init__(self, rom, num_envs, **arguments):
            made.append((rom, num_envs, arguments))

    monkeypatch.setattr("ale_py.vector_env.AtariVectorEnv", Recorder)
    options = {"sticky": 0.5, "frame_skip": 3, "noop_max": 7, "fire_reset": False, "frame_stack": 2, "image_size": 20}
    options |= {"full_action_space": True, "max_frames": 90, "threads": 5}
    env = build.make_host("atari/MsPacman", **options)
    assert env.spec.time_limit == 30
    assert env.spec.obs_shape == (20, 20, 2)
    env.start(6, render=True)
    wanted = {"repeat_action_probability": 0.5, "frameskip": 3, "noop_max": 7, "use_fire_reset": False, "stack_num": 2}
    wanted |= {"img_height": 20, "img_width": 20, "full_action_space": True, "max_num_frames_per_episode": 90}
    wanted |= {"num_threads": 5, "reward_clipping": False, "episodic_life": False}
    assert made[1] == ("ms_pacman", 6, wanted)
    assert made[2] == ("ms_pacman", 6, {**wanted, **atari.SCREEN})


def test_a_life_lost_at_the_very_time_limit_is_a_death_and_the_step_after_it_is_nothing(monkeypatch):
    """(score, game over, timed out, lives) of one game, step by step."""
    told = iter([(0, False, False, 3), (-2, False, True, 2), (0, False, False, 1), (5, False, False, 1)])

    class Scripted:
        single_action_space = SimpleNamespace(n=4)

        def __init__(self, *_, **__):
            pass

        def reset(self, seed):
            return np.zeros((1, 4, 12, 12), np.uint8), {"lives": np.asarray([3])}

        def send(self, action):
            pass

        def recv(self):
            score, *flags, lives = (np.asarray([x]) for x in next(told))
            return np.zeros((1, 4, 12, 12), np.uint8), score, *flags, {"lives": lives}

    monkeypatch.setattr("ale_py.vector_env.AtariVectorEnv", Scripted)
    _, steps = play(build.make_host("atari/Breakout", clip_reward=True, **SMALL), 0, np.zeros((4, 1), int))
    assert column(steps, "terminated")[:, 0].tolist() == [False, True, False, False]
    assert not column(steps, "truncated").any()
    assert column(steps, "episode_over")[:, 0].tolist() == [False, True, False, False]
    assert column(steps, "valid")[:, 0].tolist() == [True, True, False, True]
    assert column(steps, "reward")[:, 0].tolist() == [0, -1, 0, 1]
    assert column(steps, "score")[:, 0].tolist() == [0, -2, 0, 5]


def test_emulators_that_do_not_start_are_one_line_and_leave_no_thread(monkeypatch):
    env = build.make_host("atari/Pong", **SMALL)
    monkeypatch.setattr(env, "emulator", lambda *_, **__: 1 / 0)
    with pytest.raises(HostEnvError, match="atari/Pong: start raised ZeroDivisionError"):
        env.start(2)
    deadline = time.monotonic() + 5
    while any(t.name == "env atari/Pong" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(t.name == "env atari/Pong" for t in threading.enumerate())


def test_the_same_seed_gives_the_same_stream():
    env = build.make_host("atari/Pong", **SMALL)
    actions = random_actions(env, 80, 2)
    (first, a), (again, b), (other, c) = play(env, 3, actions), play(env, 3, actions), play(env, 4, actions)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(column(a, "obs"), column(b, "obs"))
    assert not np.array_equal(column(a, "obs"), column(c, "obs")) or not np.array_equal(first, other)


def test_sticky_actions_are_on_by_default_and_can_be_turned_off():
    kinds = {p: build.make_host("atari/Breakout", sticky=p, noop_max=0, **SMALL) for p in (0.0, 0.25, 1.0)}
    assert build.make_host("atari/Breakout").options["sticky"] == 0.25
    actions = random_actions(kinds[0.0], 60, 2)
    calm, sticky, stuck = (column(play(env, 0, actions)[1], "obs") for env in kinds.values())
    assert not np.array_equal(calm, sticky)
    assert not np.array_equal(sticky, stuck)


def test_clipping_changes_what_is_learned_from_and_not_the_score():
    clipped = build.make_host("atari/MsPacman", clip_reward=True, **SMALL)
    plain = build.make_host("atari/MsPacman", **SMALL)
    actions = random_actions(plain, 150, 2)
    (_, a), (_, b) = play(clipped, 0, actions), play(plain, 0, actions)
    np.testing.assert_array_equal(column(a, "score"), column(b, "score"))
    np.testing.assert_array_equal(column(a, "reward"), np.sign(column(b, "reward")))
    np.testing.assert_array_equal(column(b, "reward"), column(b, "score"))
    assert column(b, "reward").max() >= 10


def test_frames_are_stacked_newest_last():
    env = build.make_host("atari/Breakout")
    assert (env.spec.obs_shape, env.spec.obs_dtype) == ((84, 84, 4), np.uint8)
    first, steps = play(env, 0, random_actions(env, 3, 1))
    stacks = [np.asarray(env.arrange(jnp.asarray(obs))) for obs in (first, *(s.obs for s in steps))]
    assert stacks[0].shape == (1, 84, 84, 4)
    assert stacks[0].dtype == np.uint8
    for before, after in pairwise(stacks):
        np.testing.assert_array_equal(after[..., :3], before[..., 1:])


def test_action_sets_and_the_paper_settings():
    assert build.make_host("atari/Breakout", **SMALL).spec.action == Discrete(4)
    assert build.make_host("atari/Breakout", full_action_space=True, **SMALL).spec.action == Discrete(18)
    options = build.make_host("atari/Breakout").options
    wanted = {"sticky": 0.25, "frame_skip": 4, "noop_max": 30, "frame_stack": 4, "image_size": 84}
    wanted |= {"episodic_life": True, "clip_reward": False, "full_action_space": False}
    assert {k: options[k] for k in wanted} == wanted
    config = presets.build("atari/Breakout")
    assert (config.net.torso, config.environment.num_envs, config.algorithm.gamma) == ("impala", 64, 0.995)


def test_the_picture_is_of_the_same_game():
    env = build.make_host("atari/Breakout", **SMALL)
    pool, plain = env.start(1, render=True), env.start(1)
    screen = env.emulator(1, **atari.SCREEN)
    pool.reset(seed=5)
    plain.reset(seed=5)
    screen.reset(seed=5)
    frames, total = [], 0.0
    for action in random_actions(env, 200, 1):
        pool.send(action)
        plain.send(action)
        drawn, score, game_over, timed_out, _ = screen.step(action)
        with_picture, without = pool.recv(), plain.recv()
        assert with_picture.score == without.score == score
        assert with_picture.episode_over == without.episode_over == (game_over | timed_out)
        np.testing.assert_array_equal(pool.render(), drawn[0, 0])
        total += float(score[0])
        frames.append(pool.render())
    assert total > 0
    assert frames[0].shape == (210, 160, 3)
    assert not np.array_equal(frames[0], frames[9])
    assert (frames[-1][..., 0] != frames[-1][..., 2]).any(), "no colour"
    pool.close()
    plain.close()


def test_every_game_of_the_paper_and_of_ale_py_has_a_name():
    listed = build.names("atari")
    assert {f"atari/{game}" for game in PAPER_GAMES} <= set(listed)
    assert len(PAPER_GAMES) == 16
    assert len(listed) == len(atari.games()) - 4 > 100
    # ale-py registers with Gymnasium what it can run; given another ROM, its emulator ends this process.
    runs = {env_id[4:-3] for env_id in gymnasium.registry if env_id.startswith("ALE/")}
    assert set(listed) == {f"atari/{game}" for game in runs}
    shipped = {rom.title().replace("_", "") for rom in roms.get_all_rom_ids()}
    assert set(atari.BACKEND.excluded) == shipped - runs
    assert atari.games()["MsPacman"] == "ms_pacman"


@pytest.mark.parametrize("game", [g for g in PAPER_GAMES if g not in ("Breakout", "MsPacman")])
def test_every_game_of_the_paper_starts(game):
    env = build.make_host(f"atari/{game}", **SMALL)
    _, steps = play(env, 0, random_actions(env, 3, 1))
    assert column(steps, "valid").all()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("atari/Brekout", {}, "nearest: atari/Breakout"),
        ("atari/mspacman", {}, "nearest: atari/MsPacman"),
        ("atari/", {}, "expected a known id, got 'atari/'"),
        ("atari/Combat", {}, "got 'atari/Combat', which needs two players and cannot be run by ale-py$"),
        ("atari/Pong", {"colour": 1}, "atari/Pong: expected clip_reward, episodic_life, .*, got option 'colour'"),
        ("atari/Pong", {"sticky": 2.0}, r"sticky: expected a number in \[0, 1\].*, got 2"),
        ("atari/Pong", {"frame_skip": 0}, "frame_skip: expected a whole number of at least 1, got 0"),
        ("atari/Pong", {"noop_max": 2.5}, "noop_max: expected a whole number of at least 0, got 2.5"),
        ("atari/Pong", {"episodic_life": 3}, "episodic_life: expected true or false, got 3"),
        ("atari/Pong", {"worker_timeout": 0}, r"worker_timeout: expected seconds in \(0, 1e.09\].*, got 0"),
        ("atari/Pong", {"worker_timeout": 1e300}, r"worker_timeout: expected seconds in \(0, 1e.09\].*, got 1e.300"),
        ("atari/Pong", {"groups": 0}, "groups: expected a whole number of at least 1, got 0"),
    ],
)
def test_wrong_games_and_options_are_one_line(env_id, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build.make_host(env_id, **options)
    assert "\n" not in str(caught.value)


def test_an_emulator_that_never_answers_is_one_line_in_good_time():
    """ale-py's threads take an action the game does not have as an error of their own, and never answer."""
    env = build.make_host("atari/Pong", worker_timeout=30.0, **SMALL)
    pool = env.start(2)
    pool.reset(seed=0)
    pool._thread.timeout = 0.5
    (emulator,) = pool._emulators
    started = time.monotonic()
    pool.send(np.full(2, 99))
    with pytest.raises(HostEnvError, match=r"^atari/Pong: step did not return within worker_timeout, 0.5 s$"):
        pool.recv()
    pool.close()
    assert time.monotonic() - started < 5
    emulator.send(np.zeros(2, np.int32))  # only so that the thread that was left behind ends too


def test_closing_ends_the_emulators_threads_even_in_the_middle_of_a_step():
    env = build.make_host("atari/Pong", **SMALL)
    before = len(os.listdir("/proc/self/task"))
    pools = [env.start(2), env.start(2, render=True)]
    for pool in pools:
        pool.reset(seed=0)
        pool.send(np.zeros(2))
    assert len(os.listdir("/proc/self/task")) >= before + 6
    for pool in pools:
        pool.close()
        pool.close()
    del pool, pools
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(os.listdir("/proc/self/task")) <= before


@pytest.mark.parametrize("missing", ["ale_py", "ale_py.vector_env"])  # the second is so without Gymnasium
def test_a_missing_extra_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[atari\]' in a checkout"):
        build.make_host("atari/Breakout")
