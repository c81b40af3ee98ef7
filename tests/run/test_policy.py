"""A policy takes and gives what the environment's own spaces do; no training is needed to see that."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from nextpolicy.config import NetConfig
from nextpolicy.envs import build as envs
from nextpolicy.envs.base import Box, Discrete, EnvSpec, own_actions, plain
from nextpolicy.nets import build as nets
from nextpolicy.run.policy import Policy
from nextpolicy.types import PolicySnapshot

pytestmark = pytest.mark.quick_compilation
# One wide layer and, for continuous actions, noise so wide that bounds are met.
NET = NetConfig(torso="mlp", hidden=(8,), log_std_init=3.0)


def policy_of(spec: EnvSpec, arrange: Any = None, seed: int = 0) -> Policy:
    """A policy that was never trained, with parameters that are not near zero."""
    networks = nets.build(replace(spec, obs_table=None), NET)
    params = jax.tree.map(lambda x: 20.0 * x, networks.init(jax.random.key(seed))["actor"])
    params["params"]["head"].pop("log_std", None)
    if isinstance(spec.action, Box):
        params["params"]["head"]["log_std"] = jnp.full(int(np.prod(spec.action.shape)), 3.0)
    return Policy(spec, networks, PolicySnapshot(params, None), arrange)


def of_spaces(observation: Any, action: Any, **options: Any) -> tuple[Any, Policy]:
    env = envs.make_host(partial(Toy, observation, action), **options)
    return env, policy_of(env.spec, env.arrange)


class Toy(gymnasium.Env):
    """Whatever spaces it is given, and only actions that are in them."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return self.observation_space.sample(), 0.0, False, False, {}


VECTOR, CHOICE = spaces.Box(-1, 1, (3,)), spaces.Discrete(9)
OBSERVATIONS = [
    VECTOR,
    spaces.Box(-1, 1, ()),
    spaces.Box(-5, 5, (2, 3), np.float64),
    spaces.Box(-5, 5, (2,), np.int64),
    spaces.Box(0, 255, (5, 4, 3), np.uint8),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-7),
    spaces.Discrete(4, start=3, dtype=np.uint8),
]
ACTIONS = [
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, start=250, dtype=np.uint8),
    spaces.Discrete(3, start=2**40),
    spaces.Discrete(3, dtype=np.int32),
    spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    spaces.Box(-0.1, 0.1, (2,), np.float16),
    spaces.Box(np.asarray([-1.0, 0.0, -np.inf], np.float32), np.asarray([1.0, np.inf, 0.0], np.float32)),
    spaces.Box(-1, 1, ()),
]


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=repr)
def test_it_takes_every_observation_the_environment_gives(observation: Any) -> None:
    env, policy = of_spaces(observation, CHOICE)
    observation.seed(0)
    many = np.stack([observation.sample() for _ in range(60)])
    batch = policy(many)
    assert batch.shape == (60,)
    assert len(set(batch.tolist())) > 1, "it does not read the observation"
    assert [policy(one) for one in many[:9]] == batch[:9].tolist()
    # The network by hand on what pools make of them for training.
    rows = env.arrange(jnp.asarray(plain(many)))
    assert rows.shape == (60, *env.spec.obs_shape)
    logits = policy._networks.policy(policy.snapshot)(rows).logits
    np.testing.assert_array_equal(batch, np.argmax(logits, axis=-1))


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
def test_every_action_is_in_the_environments_space(action: Any) -> None:
    _, policy = of_spaces(VECTOR, action)
    VECTOR.seed(0)
    many = np.stack([VECTOR.sample() for _ in range(50)])
    greedy, drawn = policy(many), policy(many, jax.random.key(1))
    toy = Toy(VECTOR, action)
    for one in (*greedy, *drawn, policy(many[0]), policy(many[0], jax.random.key(2))):
        given = one if isinstance(action, spaces.Discrete) else np.asarray(one)
        assert given.dtype == action.dtype
        toy.step(given)
    assert isinstance(policy(many[0]), np.integer if isinstance(action, spaces.Discrete) else np.ndarray)
    if isinstance(action, spaces.Discrete):
        assert set(drawn.tolist()) == set(range(int(action.start), int(action.start) + 3))
    else:
        assert (drawn == action.high).any()
        assert (drawn == action.low).any()


def test_images_with_channels_first_are_taken_as_they_come() -> None:
    image = spaces.Box(0, 255, (3, 5, 4), np.uint8)
    _, policy = of_spaces(image, CHOICE, channels_first=True)
    frames = np.stack([image.sample() for _ in range(60)])
    rows = np.moveaxis(frames, 1, -1)
    logits = policy._networks.policy(policy.snapshot)(jnp.asarray(rows)).logits
    assert len(set(np.argmax(logits, axis=-1).tolist())) > 1
    np.testing.assert_array_equal(policy(frames), np.argmax(logits, axis=-1))
    with pytest.raises(ValueError, match=r"expected shape \(3, 5, 4\).*, got uint8 of shape \(5, 4"):
        policy(rows[0])


@pytest.mark.quick_compilation(False)
@pytest.mark.parametrize(
    ("observation", "action"),
    [(VECTOR, spaces.Discrete(3, start=-1)), (spaces.Discrete(4, start=3), spaces.Box(-0.5, 0.5, (2, 2)))],
)
def test_apply_is_the_same_function_for_jit_and_vmap(observation: Any, action: Any) -> None:
    _, policy = of_spaces(observation, action)
    many = np.stack([observation.sample() for _ in range(5)])
    one = many[0]
    np.testing.assert_array_equal(policy.apply(many), policy(many))
    np.testing.assert_array_equal(jax.jit(policy.apply)(many), policy(many))
    np.testing.assert_allclose(jax.vmap(policy.apply)(many), policy(many), rtol=1e-5)
    np.testing.assert_array_equal(jax.jit(policy.apply)(one, jax.random.key(1)), policy(one, jax.random.key(1)))
    with pytest.raises(
        TypeError, match=r"^obs: expected .*, got a traced array; inside jit and vmap, call policy.apply"
    ):
        jax.vmap(policy)(many)
    keys = jax.random.split(jax.random.key(2), 5)
    assert jax.vmap(policy.apply)(many, keys).shape == (5, *action.shape)


def test_on_a_device_it_is_the_same() -> None:
    """Gymnax's CartPole and Gymnasium's are one game: a policy of either plays in the other."""
    pytest.importorskip("gymnax")
    policy = policy_of(envs.make("gymnax/CartPole-v1").spec)
    game = gymnasium.make("CartPole-v1")
    obs, _ = game.reset(seed=0)
    for _ in range(3):
        obs, *_ = game.step(policy(obs))
    assert repr(policy) == "Policy(gymnax/CartPole-v1: shape (4,) -> Discrete(2))"
    pendulum = policy_of(envs.make("gymnax/Pendulum-v1").spec)
    drawn = pendulum(np.zeros((50, 3)), jax.random.key(0))
    assert (drawn.dtype, drawn.shape, drawn.min(), drawn.max()) == (np.float32, (50, 1), -2.0, 2.0)


def test_four_rooms_takes_numbers_of_states_and_images() -> None:
    spec = envs.make("four-rooms").spec
    policy = policy_of(spec)
    assert spec.obs_table is not None
    states = np.arange(104).reshape(2, 52)
    actions = policy(states)
    assert len(set(actions.ravel().tolist())) > 1
    np.testing.assert_array_equal(actions, policy(spec.obs_table[states]))
    assert (policy(7), policy(spec.obs_table[7]), policy.apply(7)) == (actions[0, 7],) * 3
    with pytest.raises(ValueError, match=r"^obs: expected a whole number from 0 to 103 for four-rooms.*, got 104$"):
        policy([3, 104])


def test_a_state_may_be_given_as_its_row() -> None:
    _, policy = of_spaces(spaces.Discrete(4, start=3), CHOICE)
    np.testing.assert_array_equal(policy(np.eye(4)), policy([3, 4, 5, 6]))


@pytest.mark.parametrize(
    ("observation", "given"),
    [
        (
            VECTOR,
            [
                (
                    np.zeros(4),
                    r"expected shape \(3,\), or a batch, for custom/.*, got float32 of shape \(4,\)",
                ),
                (1.0, r"expected shape \(3,\).* got float32 of shape \(\)"),
                ({"a": 1}, r"expected numbers, shape \(3,\).*, got dict"),
                (["a", "b", "c"], r"expected numbers, shape \(3,\).*, got str"),
            ],
        ),
        (
            spaces.Discrete(4, start=3),
            [
                (2, "expected a whole number from 3 to 6 for custom/.*, got 2"),
                ([3, 7], "expected a whole number from 3 to 6 for custom/.*, got 7"),
                (2**32 + 3, "expected a whole number from 3 to 6 for custom/.*, got 4294967299"),
                (3.5, "expected a whole number from 3 to 6, or a batch, for .*, got float32 of shape .*"),
            ],
        ),
    ],
)
def test_other_observations_are_one_line(observation: Any, given: list[tuple[Any, str]]) -> None:
    _, policy = of_spaces(observation, CHOICE)
    for obs, words in given:
        with pytest.raises(ValueError, match=f"^obs: {words}$"):
            policy(obs)


def test_discrete_actions_start_where_the_space_does() -> None:
    """By hand: what a policy calls action 0 is the environment's first."""
    actions = own_actions(Discrete(3, start=5, dtype=np.uint8), np.asarray([0, 2], np.int32))
    assert (actions.tolist(), actions.dtype) == ([5, 7], np.uint8)


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            VECTOR,
            (np.zeros(3), {}),
            r"obs: expected shape \(3,\).*, got a tuple of length 2; write `obs, info = env.reset\(\)`",
        ),
        (VECTOR, [[0.0], [0.0, 1.0]], r"obs: expected shape \(3,\).*, got a list of length 2$"),
        (VECTOR, np.zeros((0, 3)), r"obs: expected numbers, shape \(3,\).*, got an array of shape \(0, 3\)"),
        (VECTOR, np.zeros(3, object), r"obs: expected numbers, shape \(3,\).*, got int"),
        (spaces.Discrete(5, start=2), True, r"obs: expected a whole number from 2 to 6 for .*, got 1$"),
    ],
)
def test_what_is_no_observation_is_one_line(space: Any, given: Any, message: str) -> None:
    _, policy = of_spaces(space, CHOICE)
    with pytest.raises(ValueError, match=message) as caught:
        policy(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [0, "x"])
def test_what_is_no_key_is_one_line(key: Any) -> None:
    _, policy = of_spaces(VECTOR, CHOICE)
    with pytest.raises(ValueError, match=r"^key: expected jax\.random\.key\(\.\.\.\), got"):
        policy(np.zeros(3, np.float32), key)
