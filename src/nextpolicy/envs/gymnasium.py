"""Any Gymnasium environment with Box or Discrete spaces, on the host.

Environments step in one thread of this process (`vectorization=sync`), in processes of their own (`async`), or by their
own vector implementation (`native`). Whichever it is, it is driven from a thread, so that the policy can act for
another group meanwhile and a step that never returns is noticed.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import multiprocessing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Box, Discrete, EnvSpec, HostEnvError, own_actions, plain, take_option
from nextpolicy.envs.driver import SECONDS_PER_ENV, Driver, check_timeout, drive, line_of
from nextpolicy.types import Array, Step

OPTIONS: dict[str, Any] = {
    "vectorization": "sync",
    "autoreset": "same-step",
    "worker_timeout": 60.0,  # seconds a step may take; the start and a reset, one more for each environment
    "groups": 2,
    "channels_first": False,  # whether images come as [C, H, W]
}
_MOST_NUMBERS = 1_000_000  # of a Discrete space
CLOSE_SECONDS = 5.0  # after which what does not close is left or killed
CHOICES = {"vectorization": ("sync", "async", "native"), "autoreset": ("same-step", "next-step")}


def names() -> list[str]:
    """Ids Gymnasium knows now; one that a module of yours registers is `module:Id`."""
    import gymnasium

    return list(gymnasium.registry)


def make(name: str, **options: Any) -> GymnasiumEnv:
    """An environment by its Gymnasium id; options that are not ours go to its constructor."""
    ours = {k: options.pop(k) for k in list(options) if k in OPTIONS}
    return GymnasiumEnv(f"gym/{name}", _find(name), ours, options)


def wrap(env_fn: Callable[[], Any], **options: Any) -> GymnasiumEnv:
    """Environments made by a callable without arguments."""
    extra = sorted(set(options) - set(OPTIONS))
    label = getattr(env_fn, "__name__", type(env_fn).__name__)
    if extra:
        raise ValueError(f"custom/{label}: got option {extra[0]!r}, takes {', '.join(sorted(OPTIONS))}")
    return GymnasiumEnv(f"custom/{label}", env_fn, options, {})


def _find(name: str) -> Any:
    """Gymnasium's description of an id, `module:Id` included, or an error with the nearest ids."""
    import gymnasium

    module, colon, rest = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:  # it is the user's code that runs here
            line = f"{type(error).__name__}: {line_of(error)}"
            raise ValueError(f"environment: got 'gym/{name}', cannot import {module} ({line})") from error
    try:
        return gymnasium.spec(rest)
    except gymnasium.error.Error as error:
        known = {known.lower(): known for known in gymnasium.registry}
        near = [known[match] for match in difflib.get_close_matches(rest.lower(), known, n=3, cutoff=0.6)]
        hint = f"nearest: {', '.join(f'gym/{n}' for n in near)}" if near else "`nextpolicy envs gym` lists them"
        raise ValueError(f"environment: got 'gym/{name}', takes an id that Gymnasium knows; {hint}") from error


class GymnasiumEnv:
    """A kind of environment: an id or a callable, and how it is run."""

    def __init__(self, env_id: str, source: Any, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        given = dict(options)
        taken = {k: take_option(env_id, given, k, v, CHOICES.get(k, ())) for k, v in OPTIONS.items()}
        self.source, self.arguments, self.options = source, dict(arguments), taken
        self.groups, self.timeout = taken["groups"], check_timeout(env_id, taken["worker_timeout"])
        if self.groups < 1:
            raise ValueError(f"{env_id} groups: got {self.groups}, takes a whole number of at least 1")
        native = taken["vectorization"] == "native"
        if native and getattr(source, "vector_entry_point", None) is None:
            raise ValueError(f"{env_id} vectorization: got 'native', which it does not have, takes 'sync' or 'async'")
        single = drive(env_id, self.timeout, self.maker())
        _check_environment(env_id, single)
        self.observation_space, self.action_space = single.observation_space, single.action_space
        limit = getattr(single.spec, "max_episode_steps", None)
        drawable = "rgb_array" in (single.metadata or {}).get("render_modes", ())
        self.can_render = single.render_mode == "rgb_array" or (drawable and not callable(source))
        _close(env_id, single)
        shape, dtype = _observation(env_id, self.observation_space, taken["channels_first"])
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=shape,
            action=_action(env_id, self.action_space),
            obs_dtype=dtype,
            time_limit=limit,
            own_obs_shape=tuple(self.observation_space.shape),
            first_state=getattr(self.observation_space, "start", None),
        )
        self.resets_in_step = self._native_mode() if native else taken["autoreset"] == "same-step"
        mode = "same-step" if self.resets_in_step else "next-step"
        if options.get("autoreset", mode) != mode:
            raise ValueError(f"{env_id} autoreset: got {options['autoreset']!r}, takes its native one, {mode!r}")

    def _native_mode(self) -> bool:
        vector = drive(self.spec.id, self.timeout, lambda: self.vector(1, render=False))
        _close(self.spec.id, vector)
        return _resets_in_step(self.spec.id, vector)

    def maker(self, **changes: Any) -> Callable[[], Any]:
        """What makes one environment; it is sent to worker processes, which need none of this package for it."""
        import gymnasium

        if callable(self.source):
            return self.source
        return partial(gymnasium.make, self.source, **{"disable_env_checker": True, **self.arguments, **changes})

    def vector(self, num_envs: int, render: bool) -> Any:
        """Gymnasium's vector environment; made inside the thread that drives it."""
        import gymnasium
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        if self.options["vectorization"] == "native" and not render:
            return gymnasium.make_vec(self.source, num_envs, "vector_entry_point", **self.arguments)
        mode = AutoresetMode.SAME_STEP if self.resets_in_step else AutoresetMode.NEXT_STEP
        make = self.maker(render_mode="rgb_array") if render else self.maker()
        if self.options["vectorization"] == "async" and not render:
            # Not by a plain fork: this process has JAX's threads, whose locks a child would inherit held.
            return AsyncVectorEnv([make] * num_envs, autoreset_mode=mode, context="forkserver")
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)

    def start(self, num_envs: int, render: bool = False) -> GymnasiumPool:
        return GymnasiumPool(self, num_envs, render)

    def arrange(self, obs: Array) -> Array:
        """A discrete observation as a one-hot vector, bytes as bytes, all else as float32; channels last."""
        if self.spec.first_state is not None:
            return jax.nn.one_hot(obs - int(self.spec.first_state), self.spec.obs_shape[0], dtype=jnp.float32)
        obs = jnp.moveaxis(obs, 1, -1) if self.options["channels_first"] else obs
        return obs.reshape((-1, *self.spec.obs_shape)).astype(self.spec.obs_dtype)


class GymnasiumPool:
    """Running environments, driven from a thread of their own."""

    def __init__(self, env: GymnasiumEnv, num_envs: int, render: bool) -> None:
        self.num_envs, self.env = num_envs, env
        self._thread = Driver(env.spec.id, env.timeout)
        self._children: list[Any] = []
        self._patience = env.timeout + SECONDS_PER_ENV * num_envs
        before = set(multiprocessing.active_children())
        try:
            self._vector = self._thread.call("start", lambda: env.vector(num_envs, render), self._patience)
        except BaseException:
            self._children = [p for p in multiprocessing.active_children() if p not in before]
            self._kill()
            raise
        self._children = list(getattr(self._vector, "processes", ()))
        self._same_step = _resets_in_step(env.spec.id, self._vector)
        self._over = np.zeros(num_envs, bool)

    def reset(self, seed: int) -> np.ndarray:
        self._over = np.zeros(self.num_envs, bool)
        return self._thread.call("reset", lambda: plain(self._vector.reset(seed=int(seed))[0]), self._patience)

    def send(self, action: np.ndarray) -> None:
        action = own_actions(self.env.spec.action, np.asarray(action))
        self._thread.submit(lambda: self._vector.step(action))

    def recv(self) -> Step[np.ndarray]:
        obs, score, terminated, truncated, info = self._thread.wait("step")
        truncated = truncated & ~terminated
        over = terminated | truncated
        index = np.flatnonzero(over).astype(np.int32) if self._same_step else np.zeros(0, np.int32)
        score = score.astype(np.float32)
        step = Step(
            obs=plain(obs),
            reward=score,
            terminated=terminated,
            truncated=truncated,
            valid=np.ones(self.num_envs, bool) if self._same_step else ~self._over,
            score=score,
            episode_over=over,
            final_index=index,
            final_obs=plain(np.stack([info["final_obs"][i] for i in index])) if len(index) else None,
        )
        self._over = over
        return step

    def render(self) -> np.ndarray:
        frame = np.asarray(self._thread.call("render", lambda: self._vector.render())[0])
        if frame.dtype.kind not in "iu" or frame.ndim != 3 or frame.shape[2] != 3:
            got = f"{frame.dtype} of shape {frame.shape}"
            raise HostEnvError(f"{self.env.spec.id}: render gave {got}, takes whole numbers [H, W, 3] from 0 to 255")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """End threads and processes, by force where one does not answer."""
        if self._vector is None:
            return
        vector, self._vector = self._vector, None
        if self._thread.idle:
            with contextlib.suppress(HostEnvError):  # what does not close is ended below
                self._thread.call("close", vector.close, timeout=min(CLOSE_SECONDS, self.env.timeout))
        vector.closed = True  # or it would try again, and wait, when it is collected
        self._kill()

    def _kill(self) -> None:
        for process in self._children:
            if process.is_alive():
                process.kill()
        for process in self._children:
            process.join(timeout=5.0)
        self._thread.stop()


def _check_environment(env_id: str, made: Any) -> None:
    import gymnasium

    if not isinstance(made, gymnasium.Env):
        got = "a vector environment" if hasattr(made, "num_envs") else type(made).__name__
        raise ValueError(f"{env_id}: got {got}, takes one gymnasium.Env from each call")


def _close(env_id: str, made: Any) -> None:
    """Close what was only looked at; nothing depends on whether that works."""
    with contextlib.suppress(HostEnvError):
        drive(env_id, CLOSE_SECONDS, made.close)


def _resets_in_step(env_id: str, vector: Any) -> bool:
    from gymnasium.vector import AutoresetMode

    mode = vector.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(f"{env_id}: got autoreset mode {mode}, takes SAME_STEP or NEXT_STEP")
    return mode == AutoresetMode.SAME_STEP


def _observation(env_id: str, space: Any, channels_first: bool) -> tuple[tuple[int, ...], Any]:
    """Shape and type of what networks read."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return (_count(env_id, "observations", space),), np.float32
    if space is None:
        raise ValueError(f"{env_id}: expected an observation space, got none; set self.observation_space")
    if isinstance(space, spaces.Box) and not all(space.shape):
        raise ValueError(f"{env_id}: expected observations of one number or more, got a Box of shape {space.shape}")
    if not isinstance(space, spaces.Box):
        flat = "wrap it in gymnasium.wrappers.FlattenObservation and give that as env_fn"
        odd = isinstance(space, (spaces.Graph, spaces.Sequence))  # of no fixed length
        advice = "make them a Box in a gymnasium.ObservationWrapper and give that as env_fn" if odd else flat
        raise ValueError(f"{env_id}: expected observations of Box or Discrete, got {type(space).__name__}; {advice}")
    shape = tuple(space.shape) or (1,)
    if channels_first:
        if len(shape) != 3:
            raise ValueError(f"{env_id} channels_first: got true for observations of shape {shape}, takes images")
        shape = (*shape[1:], shape[0])
    return shape, np.uint8 if space.dtype == np.uint8 else np.float32


def _count(env_id: str, what: str, space: Any) -> int:
    """How many numbers a Discrete space has: networks have an input or output for each."""
    if space.n > _MOST_NUMBERS:
        raise ValueError(f"{env_id}: expected {what} of Discrete(n) with n at most {_MOST_NUMBERS}, got {space.n}")
    return int(space.n)


def _action(env_id: str, space: Any) -> Discrete | Box:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(_count(env_id, "actions", space), int(space.start), space.dtype)
    if space is None:
        raise ValueError(f"{env_id}: expected an action space, got none; set self.action_space")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Box(tuple(space.shape), space.low, space.high, space.dtype)
    got = f"a Box of {space.dtype}" if isinstance(space, spaces.Box) else type(space).__name__
    advice = "wrap it in gymnasium.wrappers.TransformAction with a Discrete or Box and give that as env_fn"
    raise ValueError(f"{env_id}: expected actions of Discrete or a Box of real numbers, got {got}; {advice}")
