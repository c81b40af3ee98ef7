"""Peers, where they are present. Nothing of theirs is here: each is loaded from where the user has it.

The same work means: the same environment and number of environments, rollout length, epochs, minibatches, network and
number of seeds. What a peer does differently inside that work (truncation, metrics) is its own.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy import presets
from nextpolicy.bench.contenders import Contender
from nextpolicy.envs.brax import import_brax
from nextpolicy.envs.gymnax import import_gymnax
from nextpolicy.nets.heads import Categorical, DiagonalGaussian


def purejaxrl(path: str, env: str, members: int, fields: dict[str, Any]) -> Contender:
    """PureJaxRL's PPO from a checkout, on today's gymnax and Brax: its scripts are loaded as they are.

    It fixes its networks (MLP 64 for gymnax, 256 for Brax), so `fields` should ask ours for the same.
    """
    folder = Path(path) / "purejaxrl" if (Path(path) / "purejaxrl").is_dir() else Path(path)
    suite, name = env.split("/", 1)
    script = folder / ("ppo_continuous_action.py" if suite == "brax" else "ppo.py")
    if not script.is_file():
        raise ValueError(f"purejaxrl: got {path}, takes a checkout that has {script.name}")
    config = presets.build(env, **fields)
    settings = {
        "LR": config.ppo.learning_rate,
        "NUM_ENVS": config.environment.num_envs,
        "NUM_STEPS": config.ppo.rollout_length,
        "UPDATE_EPOCHS": config.ppo.epochs,
        "NUM_MINIBATCHES": config.minibatches,
        "GAMMA": config.ppo.gamma,
        "GAE_LAMBDA": config.ppo.lam,
        "CLIP_EPS": config.ppo.clip,
        "ENT_COEF": config.ppo.entropy_coef,
        "VF_COEF": config.ppo.value_coef,
        "MAX_GRAD_NORM": config.ppo.max_grad_norm,
        "ACTIVATION": "tanh",
        "ENV_NAME": name,
        "ANNEAL_LR": True,
        "NORMALIZE_ENV": True,
        "DEBUG": False,
    }
    make_train = _load_purejaxrl(folder, script, config.environment.env_options.get("backend"))
    keys = jax.random.split(jax.random.PRNGKey(0), members)
    compiled: dict[int, Any] = {}

    def prepare(rounds: int) -> float:
        started = time.perf_counter()
        total = rounds * settings["NUM_ENVS"] * settings["NUM_STEPS"]
        train = jax.jit(jax.vmap(make_train({**settings, "TOTAL_TIMESTEPS": total})))
        compiled[rounds] = train.lower(keys).compile()
        return time.perf_counter() - started

    # Its init and its rounds are one program, one for each number of rounds. No rounds at all tell what init takes.
    prepare(0)
    contender = Contender("purejaxrl", config.batch_size * members, lambda rounds: None)

    def run(rounds: int) -> Any:
        if rounds not in compiled:
            contender.compile_seconds = prepare(rounds)
        return jax.block_until_ready(compiled[rounds](keys))

    contender.run = run
    contender.notes["overhead"] = lambda: jax.block_until_ready(compiled[0](keys))
    return contender


def _load_purejaxrl(folder: Path, script: Path, backend: str | None) -> Any:
    """Its `make_train`, with stand-ins for what it imports and does not need here."""
    import_gymnax()
    _stand_in("navix")
    chex = _stand_in("chex")
    chex.PRNGKey = chex.Array = jax.Array
    distrax = _stand_in("distrax")
    distrax.Categorical = _Categorical
    distrax.MultivariateNormalDiag = _Normal
    import_brax()
    _load("wrappers", folder / "wrappers.py")
    module = _load(f"purejaxrl_{script.stem}", script)
    if hasattr(module, "gymnax"):
        module.gymnax = types.SimpleNamespace(make=_legacy_gymnax)
    if backend is not None:  # it has no setting for it: its wrapper's default is positional
        module.BraxGymnaxWrapper = partial(module.BraxGymnaxWrapper, backend=backend)
    return module.make_train


def _stand_in(name: str) -> Any:
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) is None:
        module = sys.modules[name] = types.ModuleType(name)
    return module


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"purejaxrl: {path} cannot be loaded")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _legacy_gymnax(name: str) -> Any:
    """A gymnax 1.x environment with the five-value step of 0.x, time limits counted as death."""
    gymnax = import_gymnax()
    env, params = gymnax.make(name)

    class Legacy:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(env, attribute)

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
            obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
            info.pop("final_observation", None)
            return obs, state, reward, jnp.logical_or(terminated, truncated), {"discount": 1.0 - terminated}

        def reset(self, key: Any, params: Any = None) -> Any:
            return env.reset(key, params)

    return Legacy(), params


class _Categorical:
    """What the script uses of distrax's."""

    def __init__(self, logits: Any) -> None:
        self.dist = Categorical(jax.nn.log_softmax(logits))

    def sample(self, seed: Any) -> Any:
        return jax.random.categorical(seed, self.dist.logits)

    def log_prob(self, action: Any) -> Any:
        return self.dist.log_prob(action)

    def entropy(self) -> Any:
        return self.dist.entropy()


class _Normal(_Categorical):
    """What the script uses of distrax's diagonal normal."""

    def __init__(self, mean: Any, scale: Any) -> None:
        self.dist = DiagonalGaussian(mean, jnp.broadcast_to(jnp.log(scale), mean.shape))  # type: ignore[assignment]

    def sample(self, seed: Any) -> Any:
        return self.dist.sample(seed)
