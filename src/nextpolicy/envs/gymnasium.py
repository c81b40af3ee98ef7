"""Any Gymnasium environment with spaces that `gymnasium_spaces.py` converts, on the host.

Environments step in one thread of this process (`vectorization=sync`), in one process each (`async`), or in their own
vector implementation (`native`). In each case a separate thread runs them, so that the policy can act for another group
in the meantime and a hanging step is noticed.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import EnvSpec, HostEnvError, at_least_one, check_options, own_actions, plain, take_options
from nextpolicy.envs.driver import SECONDS_PER_ENV, Driver, check_timeout, drive, line_of
from nextpolicy.envs.gymnasium_spaces import action_space, observation
from nextpolicy.envs.nested import flatten
from nextpolicy.envs.registry import Backend, unknown
from nextpolicy.envs.returned import array_of, step_of
from nextpolicy.types import Array, PyTree, Step

if TYPE_CHECKING:
    from gymnasium import Env
    from gymnasium.envs.registration import EnvSpec as Registered
    from gymnasium.vector import VectorEnv

OPTIONS: dict[str, str | float | int | bool] = {
    "vectorization": "sync",
    "autoreset": "same-step",
    "worker_timeout": 60.0,  # seconds for a step; starting and resetting get one more for each environment
    "groups": 2,
    "channels_first": False,  # whether images come as [C, H, W]
}
CHOICES = {"vectorization": ("sync", "async", "native"), "autoreset": ("same-step", "next-step")}
CLOSE_SECONDS = 5.0  # for closing; then processes are killed and threads abandoned


def names() -> list[str]:
    """Ids that are registered with Gymnasium; `module:Id` names one that a module registers.

    Without those of ale_py, which registers its games when it is imported; ours are `atari/...`.
    """
    import gymnasium

    return [name for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]


def make(name: str, **options: object) -> GymnasiumEnv:
    """An environment by its Gymnasium id; options that are not in `OPTIONS` are passed to its constructor."""
    ours = {k: options.pop(k) for k in list(options) if k in OPTIONS}
    return GymnasiumEnv(f"gym/{name}", _registered(name), ours, options)


def wrap(env_fn: Callable[[], object], **options: object) -> GymnasiumEnv:
    """Environments made by a callable without arguments."""
    env_id = f"custom/{getattr(env_fn, '__name__', type(env_fn).__name__)}"
    check_options(env_id, options, OPTIONS)
    return GymnasiumEnv(env_id, env_fn, options, {})


def _registered(name: str) -> Registered:
    """Gymnasium's description of an id; for `module:Id`, after importing the module."""
    import gymnasium

    module, colon, gym_id = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:  # the user's code may raise anything
            line = f"{type(error).__name__}: {line_of(error)}"
            raise ValueError(
                f"environment: expected a module that can be imported before the colon, got 'gym/{name}' ({line})"
            ) from error
    if gym_id not in gymnasium.registry:
        raise ValueError(unknown(f"gym/{name}", [f"gym/{known}" for known in gymnasium.registry]))
    return gymnasium.spec(gym_id)


class GymnasiumEnv:
    """A Gymnasium id or a callable, and how to run it, as a `HostEnv`."""

    def __init__(
        self,
        env_id: str,
        source: Registered | Callable[[], object],
        options: Mapping[str, object],
        arguments: Mapping[str, object],
    ) -> None:
        taken = take_options(env_id, options, OPTIONS, **CHOICES)
        self.source: Any = source
        self.arguments: dict[str, Any] = dict(arguments)
        self.options = taken
        self.groups, self.timeout = taken["groups"], check_timeout(env_id, taken["worker_timeout"])
        at_least_one(env_id, "groups", self.groups)
        native = taken["vectorization"] == "native"
        if native and getattr(source, "vector_entry_point", None) is None:
            raise ValueError(
                f"{env_id} vectorization: expected 'sync' or 'async', got 'native', which it does not have"
            )
        single = drive(env_id, self.timeout, self.maker())
        _check_environment(env_id, single)
        self.observation_space, self.action_space = single.observation_space, single.action_space
        limit = getattr(single.spec, "max_episode_steps", None)
        drawable = "rgb_array" in (single.metadata or {}).get("render_modes", ())
        self.can_render = single.render_mode == "rgb_array" or (drawable and not callable(source))
        _close(env_id, single)
        shape, dtype, tree = observation(env_id, self.observation_space, taken["channels_first"])
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=shape,
            action=action_space(env_id, self.action_space),
            obs_dtype=dtype,
            time_limit=limit,
            own_obs_shape=tuple(self.observation_space.shape) if tree is None else shape,
            first_state=getattr(self.observation_space, "start", None) if tree is None else None,
            obs_tree=tree,
        )
        self.resets_in_step = self._native_mode() if native else taken["autoreset"] == "same-step"
        mode = "same-step" if self.resets_in_step else "next-step"
        if options.get("autoreset", mode) != mode:
            raise ValueError(f"{env_id} autoreset: expected its native {mode!r}, got {options['autoreset']!r}")

    def _native_mode(self) -> bool:
        vector = drive(self.spec.id, self.timeout, lambda: self.vector(1, render=False))
        _close(self.spec.id, vector)
        return _resets_in_step(self.spec.id, vector)

    def maker(self, **changes: str) -> Callable[[], Any]:
        """A function that makes one environment; worker processes can unpickle it without this package."""
        import gymnasium

        if callable(self.source):
            return self.source
        return partial(gymnasium.make, self.source, **{"disable_env_checker": True, **self.arguments, **changes})

    def vector(self, num_envs: int, render: bool) -> Any:
        """Gymnasium's vector environment; call this in the thread that runs it."""
        import gymnasium
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        if self.options["vectorization"] == "native" and not render:
            return gymnasium.make_vec(self.source, num_envs, "vector_entry_point", **self.arguments)
        mode = AutoresetMode.SAME_STEP if self.resets_in_step else AutoresetMode.NEXT_STEP
        make = self.maker(render_mode="rgb_array") if render else self.maker()
        if self.options["vectorization"] == "async" and not render:
            # A plain fork could copy locks that JAX's threads hold.
            return AsyncVectorEnv([make] * num_envs, autoreset_mode=mode, context="forkserver")
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)

    def start(self, num_envs: int, render: bool = False) -> GymnasiumPool:
        return GymnasiumPool(self, num_envs, render)

    def arrange(self, obs: Array) -> Array:
        """Discrete observations as one-hot vectors, uint8 as uint8, others as float32; channels last."""
        if self.spec.first_state is not None:
            return jax.nn.one_hot(obs - int(self.spec.first_state), self.spec.obs_shape[0], dtype=jnp.float32)
        obs = jnp.moveaxis(obs, 1, -1) if self.options["channels_first"] else obs
        return obs.reshape((-1, *self.spec.obs_shape)).astype(self.spec.obs_dtype)


class GymnasiumPool:
    """Running environments in a separate thread."""

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
        reset = lambda: self._vector.reset(seed=int(seed))[0]  # noqa: E731
        return self._read(self._thread.call("reset", reset, self._patience), self.num_envs)

    def send(self, action: np.ndarray) -> None:
        action = own_actions(self.env.spec.action, np.asarray(action))
        self._thread.submit(lambda: self._vector.step(action))

    def recv(self) -> Step[np.ndarray]:
        obs, score, terminated, truncated, info = step_of(self.env.spec.id, self._thread.wait("step"), self.num_envs)
        truncated = truncated & ~terminated
        over = terminated | truncated
        index = np.flatnonzero(over).astype(np.int32) if self._same_step else np.zeros(0, np.int32)
        step = Step(
            obs=self._read(obs, self.num_envs),
            reward=score,
            terminated=terminated,
            truncated=truncated,
            valid=np.ones(self.num_envs, bool) if self._same_step else ~self._over,
            score=score,
            episode_over=over,
            final_index=index,
            final_obs=self._finals(info, index) if len(index) else None,
        )
        self._over = over
        return step

    def _read(self, obs: PyTree, rows: int) -> np.ndarray:
        """Observations of the vector environment as one array [rows, ...]; nested ones are flattened."""
        tree, env_id, space = self.env.spec.obs_tree, self.env.spec.id, self.env.observation_space
        if tree is None:
            expected = "numbers" if space.dtype.kind == "f" else "integers"
            return plain(array_of(env_id, "obs", obs, (rows, *space.shape), expected).astype(space.dtype, copy=False))
        try:
            return np.asarray(flatten(tree, obs, name=f"{env_id} obs"))
        except ValueError as error:
            raise HostEnvError(str(error)) from error

    def _finals(self, info: Mapping[str, Any], index: np.ndarray) -> np.ndarray:
        """The final observations of environments `index`."""
        if (final := info.get("final_obs")) is None:
            raise HostEnvError(f"{self.env.spec.id}: expected final_obs in info at the end of an episode, got none")
        if isinstance(final, (dict, tuple)):  # batched, as native vector environments may return them
            return self._read(jax.tree.map(lambda leaf: np.asarray(leaf)[index], final), len(index))
        chosen = [final[i] for i in index]
        if self.env.spec.obs_tree is None:
            return self._read(chosen, len(index))
        return np.stack([self._read(obs, 1) for obs in chosen])

    def render(self) -> np.ndarray:
        frame = np.asarray(self._thread.call("render", lambda: self._vector.render())[0])
        if frame.dtype.kind not in "iu" or frame.ndim != 3 or frame.shape[2] != 3:
            got = f"{frame.dtype} of shape {frame.shape}"
            raise HostEnvError(f"{self.env.spec.id}: expected render to return integers [H, W, 3] in 0..255, got {got}")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """End thread and processes; processes that do not respond are killed."""
        if self._vector is None:
            return
        vector, self._vector = self._vector, None
        if self._thread.idle:
            with contextlib.suppress(HostEnvError):  # its processes are killed below
                self._thread.call("close", vector.close, timeout=min(CLOSE_SECONDS, self.env.timeout))
        vector.closed = True  # or its finaliser would try again, and wait
        self._kill()

    def _kill(self) -> None:
        for process in self._children:
            if process.is_alive():
                process.kill()
        for process in self._children:
            process.join(timeout=5.0)
        self._thread.stop()


def _check_environment(env_id: str, made: object) -> None:
    import gymnasium

    if not isinstance(made, gymnasium.Env):
        got = "a vector environment" if hasattr(made, "num_envs") else type(made).__name__
        raise ValueError(f"{env_id}: expected one gymnasium.Env from each call, got {got}")


def _close(env_id: str, made: Env | VectorEnv) -> None:
    """Close an environment made only for its spaces; nothing depends on its success."""
    with contextlib.suppress(HostEnvError):
        drive(env_id, CLOSE_SECONDS, made.close)


def _resets_in_step(env_id: str, vector: VectorEnv) -> bool:
    from gymnasium.vector import AutoresetMode

    mode = vector.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(f"{env_id}: expected autoreset mode SAME_STEP or NEXT_STEP, got {mode}")
    return mode == AutoresetMode.SAME_STEP


BACKEND = Backend(
    prefix="gym",
    make=make,
    names=names,
    runs_on_host=True,
    imports_modules=True,
    extra="gymnasium",
    packages=("gymnasium",),
)
