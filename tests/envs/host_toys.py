"""Small Gymnasium environments whose every value is known; no JAX here, so that worker processes start quickly."""

from __future__ import annotations

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """The observation is the number of steps taken; the episode ends after `length` steps, by death or by the clock.

    With `wrap` the last observation looks like the first, as in a task that goes on and is only cut by the clock.
    `fault` happens at step `at` of the whole life of the environment, or in its `at`-th reset where `where` says so:
    "raise", "hang" or "exit".
    """

    observation_space = spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=5, end="terminated", fault=None, at=0, wrap=False, where="step"):
        self.length, self.end, self.fault, self.at, self.wrap = length, end, fault, at, wrap
        self.where, self.lived, self.resets = where, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.resets += 1
        if self.fault is not None and self.where == "reset" and self.resets == self.at:
            _fail(self.fault)
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        self.lived += 1
        if self.fault is not None and self.where == "step" and self.lived == self.at:
            _fail(self.fault)
        over = self.steps == self.length
        return self._obs(), 1.0, over and self.end == "terminated", over and self.end == "truncated", {}

    def _obs(self):
        return np.full(1, self.steps % self.length if self.wrap else self.steps, np.float32)


def _fail(fault):
    if fault == "raise":
        raise ValueError("the motor is on fire\nsecond line")
    if fault == "exit":
        os._exit(3)
    time.sleep(120)


class Bandit(gymnasium.Env):
    """One step per episode, so that nothing is lost when episodes restart; the reward is the action."""

    observation_space, action_space = Counter.observation_space, Counter.action_space

    def reset(self, *, seed=None, options=None):
        return np.full(1, 0.5, np.float32), {}

    def step(self, action):
        return np.full(1, 0.5, np.float32), float(action), True, False, {}


class Matching(gymnasium.Env):
    """One step per episode. Reward 1/3 for each of: the first choice equals what is seen, and so do both bits.

    With `bits`, the action is MultiBinary and only the bits count.
    """

    observation_space = spaces.Dict(
        {"position": spaces.Box(-1, 1, (2,)), "more": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
    )

    def __init__(self, bits=False):
        self.action_space = spaces.MultiBinary(2) if bits else spaces.MultiDiscrete([3, 2, 2], start=[5, 0, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        draw = self.np_random
        self.goal = np.asarray([draw.integers(3), *draw.integers(0, 2, 2)])
        position = draw.uniform(-1, 1, 2).astype(np.float32)
        self.obs = {"position": position, "more": (self.goal[0], self.goal[1:].astype(np.int8))}
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        goal = np.add(self.goal, [5, 0, 0])
        return self.obs, float(np.mean(action == goal[-len(action) :])), True, False, {}


class Spaces(gymnasium.Env):
    """Whatever spaces it is given; it remembers the action it was given."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.got = []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.got.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


class CounterVector(gymnasium.vector.VectorEnv):
    """`Counter` as its own vector environment, which resets within the step, as its metadata say."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs=1, length=3, **_):
        self.num_envs, self.length = num_envs, length
        self.single_observation_space, self.single_action_space = Counter.observation_space, Counter.action_space

    def reset(self, *, seed=None, options=None):
        self.steps = np.zeros(self.num_envs, np.int64)
        return self._obs(), {}

    def step(self, actions):
        self.steps += 1
        over, info = self.steps == self.length, {}
        if over.any():
            info = {"final_obs": self._obs(), "_final_obs": over}
        self.steps[over] = 0
        return self._obs(), np.ones(self.num_envs), np.zeros(self.num_envs, bool), over, info

    def _obs(self):
        return self.steps[:, None].astype(np.float32)


gymnasium.register("HostToys/CounterVector-v0", entry_point=Counter, vector_entry_point=CounterVector)
gymnasium.register("HostToys/Counter-v0", entry_point=Counter, max_episode_steps=7)
