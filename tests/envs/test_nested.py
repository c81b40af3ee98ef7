"""Nested spaces: vectors as Gymnasium flattens them, actions in the environment's own spaces."""

from __future__ import annotations

import multiprocessing
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten as gymnasium_flatten
from gymnasium.vector.utils import concatenate as stack
from gymnasium.vector.utils import create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.core import running_stats
from nextpolicy.envs import build, nested
from nextpolicy.envs.base import Box, Discrete, EnvSpec, HostEnvError, own_actions
from nextpolicy.envs.nested import MultiDiscrete
from nextpolicy.envs.space_trees import nested_actions, tree_of
from nextpolicy.nets.build import reader

sys.path.insert(0, str(Path(__file__).parent))
from host_toys import Counter, Matching, Spaces

pytestmark = [pytest.mark.quick_compilation, pytest.mark.allow_key_reuse]
SMALL = st.integers(1, 3)
SHAPES = st.lists(SMALL, min_size=0, max_size=2).map(tuple)
STARTS = st.integers(-3, 3)
CHOICES = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), SMALL, STARTS),
    st.builds(
        lambda shape, start: spaces.MultiDiscrete(
            np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3 + 1, start=np.full(shape, start)
        ),
        st.lists(SMALL, min_size=1, max_size=2).map(tuple),
        STARTS,
    ),
    st.builds(spaces.MultiBinary, st.lists(SMALL, min_size=1, max_size=2)),
)
NUMBERS = st.builds(
    lambda shape, dtype: spaces.Box(0, 7, shape, dtype),
    SHAPES,
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
)


def nests(leaf: st.SearchStrategy) -> st.SearchStrategy:
    several = lambda inner: st.lists(inner, min_size=1, max_size=3)  # noqa: E731
    keyed = lambda parts: spaces.Dict(OrderedDict((f"k{-i}", part) for i, part in enumerate(parts)))  # noqa: E731
    return st.recursive(
        leaf, lambda inner: st.one_of(several(inner).map(spaces.Tuple), several(inner).map(keyed)), max_leaves=6
    )


def batch(space: Any, samples: list[Any]) -> Any:
    """As a vector environment holds them."""
    return stack(space, samples, create_empty_array(space, len(samples)))


@given(nests(CHOICES | NUMBERS), st.integers(0, 99))
def test_vectors_are_those_of_gymnasium(space: Any, seed: int) -> None:
    tree = tree_of(space, bits_are_choices=False)
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    expected = np.stack([gymnasium_flatten(space, sample) for sample in samples])
    flat = nested.flatten(tree, batch(space, samples))
    assert flat.dtype in (np.float32, np.uint8)
    assert flat.shape[1:] == (nested.width(tree),)
    np.testing.assert_array_equal(flat, expected.astype(flat.dtype))
    np.testing.assert_array_equal(nested.flatten(tree, samples[0]), flat[0])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other))


@given(nests(CHOICES), st.integers(0, 99))
def test_every_joint_choice_is_an_action_of_the_environment(space: Any, seed: int) -> None:
    action = nested_actions("toy", space)
    assert isinstance(action, MultiDiscrete)
    hash(action)
    numbers = np.random.default_rng(seed).integers(0, action.sizes, (5, len(action.sizes)))
    own = own_actions(action, numbers.astype(np.int32))
    ones = [own_actions(action, row[None].astype(np.int32), ()) for row in numbers]
    for one in ones:
        assert space.contains(one), one
    assert same(own, batch(space, ones))
    # Component c of a vector is component c of the own action: the one-hot vector says which.
    hot = nested.flatten(tree_of(space, bits_are_choices=True), own)
    expected = np.concatenate([np.eye(n)[numbers[:, c]] for c, n in enumerate(action.sizes)], axis=1)
    np.testing.assert_array_equal(hot, expected)


def test_under_a_trace_it_is_the_same() -> None:
    seen, acted = Nested.observation_space, Nested.action_space
    tree, action = tree_of(seen, bits_are_choices=False), nested_actions("toy", acted)
    assert isinstance(action, MultiDiscrete)
    obs = batch(seen, [seen.sample() for _ in range(5)])
    flat = nested.flatten(tree, obs)
    np.testing.assert_array_equal(nested.flatten(tree, obs, jnp), flat)
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: nested.flatten(tree, x, jnp)))(obs), flat)
    numbers = jnp.asarray([[1, 0, 2, 3], [0, 1, 0, 0]])
    assert same(
        nested.unflatten(action.tree, action.legal(numbers), own_dtypes=False), own_actions(action, np.asarray(numbers))
    )


def test_real_actions_are_clipped_part_by_part() -> None:
    space = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Tuple([spaces.Box(0, 3, (), np.float64)])})
    action = nested_actions("toy", space)
    assert isinstance(action, Box)
    assert action.outputs == 3
    own = own_actions(action, np.asarray([[9.0, 0.5, -9.0]], np.float32), ())
    assert space.contains(own), own
    assert (own["a"][0], own["b"].tolist()) == (3.0, [0.5, -1.0])


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (spaces.Dict({"a": spaces.Box(0, 255, (2,), np.uint8), "b": spaces.Box(0, 1, (1,))}), [1 / 255, 1 / 255, 1]),
        (spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8)] * 2), None),  # stays bytes, which networks divide
        (spaces.Dict({"a": spaces.Discrete(3, dtype=np.uint8), "b": spaces.MultiBinary(2)}), None),
    ],
)
def test_bytes_among_other_numbers_are_scaled(space: Any, scale: list[float] | None) -> None:
    tree = tree_of(space, bits_are_choices=False)
    found = nested.byte_scale(tree)
    assert found is None if scale is None else np.allclose(found, scale)
    # Networks read them scaled, or normalised by statistics of the raw numbers.
    spec = EnvSpec("toy", (nested.width(tree),), Discrete(2), nested.flat_dtype(tree), obs_tree=tree)
    raw = jnp.full((2, 3, *spec.obs_shape), 51, spec.obs_dtype)
    expected = 51.0 * np.asarray(scale or np.full(spec.obs_shape, 1 / 255 if spec.obs_dtype == np.uint8 else 1.0))
    np.testing.assert_allclose(reader(spec)(raw, None), np.broadcast_to(expected, raw.shape), rtol=1e-6)
    if scale is not None:
        stats = running_stats.update(running_stats.init(spec.obs_shape), raw[0])
        np.testing.assert_allclose(reader(spec)(raw, stats), 0.0, atol=1e-3)


OBS = {"position": np.asarray([0.5, -0.5], np.float32), "more": (1, np.asarray([1, 0], np.int8))}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((OBS, {}), r"obs: expected a dict, {.*'more': .a whole .*}, got a tuple of length 2; write `obs, info = env"),
        ({"position": OBS["position"]}, "obs: expected a dict, .*, got a dict with 'position'$"),
        (np.zeros(7), r"obs: expected a dict, .*, got shape \(7,\)$"),
        ({**OBS, "more": 3}, r"obs\['more'\]: expected a tuple of 2, \(a whole .*\), got int$"),
        ({**OBS, "more": (1,)}, r"obs\['more'\]: expected a tuple of 2, .*, got a tuple of length 1$"),
        ({**OBS, "position": np.zeros(3)}, r"obs\['position'\]: expected shape \(2,\), or a batch, got float64 of .*3"),
        (
            {**OBS, "position": np.zeros((5, 2))},
            r"\['position'\]: expected a batch of shape \(\), as in .*, got .*\(5,\)",
        ),
        ({**OBS, "position": "ab"}, r"obs\['position'\]: expected shape \(2,\), or a batch, got <U2 of shape"),
        ({**OBS, "position": [[1], [1, 2]]}, r"obs\['position'\]: expected shape \(2,\), got a list of length 2$"),
        ({**OBS, "more": (3, OBS["more"][1])}, r"obs\['more'\]\[0\]: expected a whole number from 0 to 2, got 3$"),
        ({**OBS, "more": (0.5, OBS["more"][1])}, r"obs\['more'\]\[0\]: expected a whole number from 0 to 2, got 0.5$"),
    ],
)
def test_what_is_not_in_the_space_is_one_line(wrong: Any, message: str) -> None:
    tree = tree_of(Matching(2).observation_space, bits_are_choices=False)
    assert nested.flatten(tree, OBS).tolist() == [0, 1, 0, 1, 0, 0.5, -0.5]
    with pytest.raises(ValueError, match=message) as caught:
        nested.flatten(tree, wrong)
    assert "\n" not in str(caught.value)


class Nested(Counter):
    """`Counter` whose observation is nested and whose reward says which action arrived."""

    observation_space = spaces.Dict({"z": spaces.Discrete(9), "a": spaces.Tuple([spaces.Box(0, 9, (2,), np.float64)])})
    action_space = spaces.Dict({"m": spaces.MultiDiscrete([3, 4], start=[0, 1]), "b": spaces.MultiBinary(2)})

    def _obs(self) -> Any:
        return {"z": self.steps, "a": (np.full(2, self.steps / 2),)}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        obs, _, *rest = super().step(action)
        return obs, float(action["m"] @ [1, 10] + action["b"] @ [100, 1000]), *rest


class NestedVector(gymnasium.vector.VectorEnv):
    """Two nested counters with final observations in one batch."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs, self.steps = num_envs, 0
        self.single_observation_space, self.single_action_space = Nested.observation_space, Nested.action_space

    def _obs(self) -> Any:
        return {"z": np.full(self.num_envs, self.steps), "a": (np.full((self.num_envs, 2), self.steps / 2),)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        final, over = self._obs(), np.full(self.num_envs, self.steps == 3)
        self.steps %= 3
        return (
            self._obs(),
            actions["m"] @ [1, 10] + actions["b"] @ [100, 1000],
            over,
            ~over & False,
            {"final_obs": final},
        )


gymnasium.register("HostToys/Nested-v0", entry_point=partial(Nested, length=3), vector_entry_point=NestedVector)


def vector(steps: int) -> np.ndarray:
    return np.concatenate([np.full(2, steps / 2), np.eye(9)[steps]])  # Gymnasium sorts the keys of a dict


@pytest.mark.parametrize(
    ("vectorization", "autoreset"),
    [("sync", "same-step"), ("sync", "next-step"), ("async", "same-step"), ("native", "same-step")],
)
def test_pools_flatten_observations_and_nest_actions(vectorization: str, autoreset: str) -> None:
    env = build.make_host("gym/HostToys/Nested-v0", vectorization=vectorization, autoreset=autoreset)
    assert (env.spec.obs_shape, env.spec.obs_dtype, env.spec.own_obs_shape) == ((11,), np.float32, (11,))
    assert env.spec.action.sizes == (2, 2, 3, 4)
    pool = env.start(2)
    try:
        first = pool.reset(seed=0)
        np.testing.assert_array_equal(first, [vector(0)] * 2)
        np.testing.assert_array_equal(env.arrange(jnp.asarray(first)), first)
        for _ in range(3):
            pool.send(np.asarray([[0, 1, 2, 3], [1, 0, 0, 0]], np.int32))
            step = pool.recv()
            np.testing.assert_array_equal(step.reward, [1042.0, 110.0])
            assert step.obs.dtype == np.float32
        ended = vector(0 if autoreset == "same-step" else 3)
        np.testing.assert_array_equal(step.obs, [ended] * 2)
        if autoreset == "same-step":
            np.testing.assert_array_equal(step.final_index, [0, 1])
            np.testing.assert_array_equal(step.final_obs, [vector(3)] * 2)
    finally:
        pool.close()
    assert not multiprocessing.active_children()


def test_an_environment_that_leaves_its_space_is_one_line() -> None:
    pool = build.make_host(partial(Nested, length=20)).start(1)
    pool.reset(seed=0)
    for _ in range(8):
        pool.send(np.zeros((1, 4), np.int32))
        pool.recv()
    pool.send(np.zeros((1, 4), np.int32))
    with pytest.raises(HostEnvError, match=r"^custom/partial obs\['z'\]: expected a whole number from 0 to 8, got 9$"):
        pool.recv()
    pool.close()


BOX, FLAG = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
TRANSFORM = "wrap it in gymnasium.wrappers.TransformAction with a Discrete or Box and give that as env_fn"
OBSERVED = f"expected observations of {SUPPORTED}, got"
LETTERS = spaces.Text(3)
GRAPH = spaces.Graph(BOX, None)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Dict({"a": spaces.Tuple([LETTERS])}), FLAG, f"{OBSERVED} Text in a Dict; .*FlattenObservation"),
        (spaces.OneOf([BOX, FLAG]), FLAG, f"{OBSERVED} OneOf; wrap it in gymnasium.wrappers.FlattenObservation"),
        (spaces.Tuple([BOX, GRAPH]), FLAG, f"{OBSERVED} Graph in a Tuple; .*wrappers.TransformObservation with a Box"),
        (spaces.Sequence(FLAG), FLAG, f"{OBSERVED} Sequence; wrap it in gymnasium.wrappers.TransformObservation"),
        (spaces.Dict({}), FLAG, "expected observations of one number or more, got Dict without any$"),
        (
            spaces.Tuple([spaces.Discrete(10**6), FLAG]),
            FLAG,
            "expected observations of at most 1000000 numbers, got 1000002",
        ),
        (
            BOX,
            spaces.Tuple([FLAG, BOX]),
            f"expected actions that are all discrete or all real, got Tuple of both; {TRANSFORM}",
        ),
        (
            BOX,
            spaces.Dict({"a": spaces.Box(0, 3, (2,), np.int32)}),
            f"expected actions that are all discrete or all real, got Dict with a Box of whole numbers; {TRANSFORM}",
        ),
        (BOX, spaces.Tuple([FLAG, LETTERS]), f"expected actions of Discrete, .*, got Text in a Tuple; {TRANSFORM}"),
        (BOX, spaces.Tuple([]), f"expected actions of one number or more, got Tuple without any; {TRANSFORM}"),
        (
            BOX,
            spaces.Tuple([spaces.Discrete(10**4), spaces.MultiBinary(100)]),
            f"expected components times values of at most 1000000 in actions, got 101 with at most 10000; {TRANSFORM}",
        ),
    ],
)
def test_what_cannot_be_flattened_says_how_to_wrap_it(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^custom/partial: {message}") as caught:
        build.make_host(partial(Spaces, observation, action))
    assert "\n" not in str(caught.value)


class State(NamedTuple):
    time: Any
    goal: Any


class Seen(NamedTuple):
    """An observation with attributes, as gymnax's Dict space expects."""

    goal: Any
    parts: Any


class Reach:
    """A gymnax-style environment: the reward counts the components of the action that equal the goal."""

    default_params = None

    def __init__(self, observation: Any = None) -> None:
        self.observation = observation

    def reset_env(self, key: Any, params: Any) -> Any:
        state = State(jnp.zeros((), jnp.int32), jax.random.randint(key, (), 0, 3))
        return self._obs(state), state

    def _obs(self, state: State) -> Any:
        seen = Seen(state.goal, (jnp.full((2,), 0.5), jnp.asarray([7], jnp.uint8)))
        return seen if self.observation is None else self.observation

    def step_env(self, key: Any, state: State, action: Any, params: Any) -> Any:
        reward = (action["a"] == state.goal) + 10.0 * (action["b"][0] == state.goal)
        state = State(state.time + 1, state.goal)
        return self._obs(state), state, reward, state.time == 2, {}

    def action_space(self, params: Any) -> Any:
        from gymnax.environments import spaces

        return spaces.Dict({"b": spaces.Tuple([spaces.Discrete(4)]), "a": spaces.Discrete(3)})

    def observation_space(self, params: Any) -> Any:
        from gymnax.environments import spaces

        pair = spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Box(0, 255, (1,), jnp.uint8)])
        return spaces.Dict({"parts": pair, "goal": spaces.Discrete(3)})


def test_gymnax_environments_may_be_nested_too() -> None:
    pytest.importorskip("gymnax")
    env = build.make(Reach())
    assert (env.spec.obs_shape, env.spec.obs_dtype, env.spec.action.sizes) == ((6,), np.float32, (4, 3))
    state, obs = env.reset(jax.random.key(0), 5)
    np.testing.assert_array_equal(obs[:, :3], np.tile([0.5, 0.5, 7.0], (5, 1)))
    goal = np.argmax(obs[:, 3:], axis=1)
    np.testing.assert_array_equal(goal, state.goal)
    _, step = jax.jit(env.step)(jax.random.key(1), state, jnp.stack([jnp.zeros(5, jnp.int32), jnp.asarray(goal)], 1))
    np.testing.assert_array_equal(step.reward, 1.0 + 10.0 * (goal == 0))
    with pytest.raises(ValueError, match=r"^Reach obs: expected a dict, .*, got a tuple of length 0"):
        build.make(Reach(()))


class Acting(Reach):
    """Takes the actions of any space and rewards their sum."""

    def __init__(self, action: Any, seen: Any = None) -> None:
        super().__init__()
        self.action, self.seen = action, seen

    def step_env(self, key: Any, state: State, action: Any, params: Any) -> Any:
        return self._obs(state), state, jnp.sum(action).astype(jnp.float32), jnp.array(False), {}

    def action_space(self, params: Any) -> Any:
        return self.action

    def observation_space(self, params: Any) -> Any:
        return super().observation_space(params) if self.seen is None else self.seen


def test_gymnax_actions_count_from_where_each_choice_starts() -> None:
    """Training and a policy give the environment the same actions."""
    pytest.importorskip("gymnax")
    env = build.make(Acting(spaces.MultiDiscrete([3, 3], start=[1, 5])))
    state, _ = env.reset(jax.random.key(0), 2)
    actions = jnp.asarray([[0, 0], [2, 1]])
    _, step = env.step(jax.random.key(1), state, actions)
    np.testing.assert_array_equal(step.reward, np.asarray(env.spec.action.legal(actions)).sum(1))
    np.testing.assert_array_equal(step.reward, [6.0, 9.0])


ADVICE = "change the environment's action_space"


@pytest.mark.parametrize(
    ("action", "seen", "message"),
    [
        (FLAG, spaces.Dict({}), "^Acting: expected observations of 1 to 1000000 numbers, got 0$"),
        (
            FLAG,
            spaces.MultiDiscrete([10**9, 2]),
            "^Acting: expected observations of 1 to 1000000 numbers, got 1000000002$",
        ),
        (FLAG, spaces.Dict({"a": LETTERS}), "^Acting: expected parts of Box, .*, got Text in observations$"),
        (spaces.Tuple([LETTERS]), None, f"^Acting: expected parts of Box, .*, got Text in actions; {ADVICE}$"),
        (spaces.Tuple([FLAG, BOX]), None, f"^Acting: expected actions .*, got Tuple of both; {ADVICE}$"),
    ],
)
def test_gymnax_refuses_what_a_network_cannot_read_or_choose(action: Any, seen: Any, message: str) -> None:
    pytest.importorskip("gymnax")
    with pytest.raises(ValueError, match=message):
        build.make(Acting(action, seen))
