"""PureJaxRL as a peer. Its code is not included here; it is loaded from the user's checkout.

The same work means the same environment, number of environments, rollout length, epochs, minibatches, network and
number of seeds. Peers may differ in details such as truncation and metrics: PureJaxRL clips values by CLIP_EPS too and
anneals the learning rate to 0.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import threading
import time
import types
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.bench.contenders import Contender, Reached, program_memory, reached, timed
from nextpolicy.config import ConfigError, TrainConfig, presets
from nextpolicy.envs import gymnax
from nextpolicy.envs.base import Discrete, EnvSpec
from nextpolicy.envs.brax import import_brax, physics_of
from nextpolicy.nets.build import build, torso_kind
from nextpolicy.nets.heads import Categorical, DiagonalGaussian
from nextpolicy.types import Array, Distribution, Networks


def purejaxrl(path: str, env: str, members: int, fields: dict[str, Any], probe: bool = True) -> Contender:
    """PureJaxRL's PPO from a checkout, with unmodified scripts, on current versions of gymnax and Brax.

    On gymnax environments, the work's network replaces the script's `ActorCritic` unless both are the same.

    Init and rounds are one program, which is compiled for each number of rounds. A program without rounds, which
    compiles quickly, measures the time of init. It is compiled at once if `probe`, else on first use.
    """
    script = purejaxrl_script(path, env)
    config = presets.build(env, **fields)
    settings = _purejaxrl_settings(config, env.split("/", 1)[1])
    network = own_network(config) if env.startswith("gymnax/") else None
    make_train = _load_purejaxrl(script, brax_backend(config), network)
    keys = jax.random.split(jax.random.PRNGKey(0), members)
    compiled: dict[int, Any] = {}

    def prepare(rounds: int) -> float:
        started = time.perf_counter()
        total = rounds * settings["NUM_ENVS"] * settings["NUM_STEPS"]
        train = jax.jit(jax.vmap(make_train({**settings, "TOTAL_TIMESTEPS": total})))
        compiled[rounds] = train.lower(keys).compile()
        return time.perf_counter() - started

    def run(rounds: int) -> Any:
        if rounds not in compiled:
            contender.compile_seconds = prepare(rounds)
        return jax.block_until_ready(compiled[rounds](keys))

    def until(target: float) -> Reached:
        """A whole training. All rounds count as equally long, since they cannot be timed individually."""
        run(config.num_rounds)
        fixed = timed(lambda: run(0)).seconds
        started = time.perf_counter()
        metrics = run(config.num_rounds)["metrics"]
        each = (time.perf_counter() - started - fixed) / config.num_rounds
        over = np.asarray(metrics["returned_episode"]).reshape(members, config.num_rounds, -1)
        total = np.asarray(metrics["returned_episode_returns"]).reshape(over.shape)
        finished = np.where(over.any(axis=-1), over.sum(axis=-1), np.nan)
        seconds = each * np.arange(1, config.num_rounds + 1)
        return reached((total * over).sum(axis=-1) / finished, seconds, config.batch_size, target)

    if probe:
        prepare(0)
    contender = Contender("purejaxrl", config.batch_size * members, run, overhead=lambda: run(0), one_length=True)
    contender.memory = lambda: max(m for p in compiled.values() if (m := program_memory(p.memory_analysis())))
    contender.until = until
    return contender


def purejaxrl_script(path: str, env: str) -> Path:
    """The script of the checkout that trains on `env`."""
    folder = Path(path) / "purejaxrl" if (Path(path) / "purejaxrl").is_dir() else Path(path)
    if not env.startswith(("gymnax/", "brax/")):
        raise ConfigError(f"purejaxrl: expected an environment of gymnax/ or brax/, got {env}")
    script = folder / ("ppo_continuous_action.py" if env.startswith("brax/") else "ppo.py")
    if not script.is_file():
        raise ConfigError(f"purejaxrl: expected a checkout that has {script.name}, got {path}")
    return script


def check_purejaxrl(path: str | None, env: str, fields: dict[str, Any]) -> None:
    """Raise if there is no checkout or if its scripts do not support the work."""
    if not path:
        how = "clone luchris429/purejaxrl from GitHub"
        raise ConfigError(f"purejaxrl: expected --purejaxrl with the path of a checkout, got none; to get one, {how}")
    purejaxrl_script(path, env)
    config = presets.build(env, **fields)
    check_env_options("purejaxrl", config)
    fixed = _BRAX_FIXED if env.startswith("brax/") else _GYMNAX_FIXED
    if env.startswith("gymnax/"):
        _gymnax_spec(config)
    has = {name: config.value(name) for name in fixed}
    if has.get("torso") == "auto":
        has["torso"] = "mlp"  # auto selects mlp for vector observations
    wrong = {name: value for name, value in fixed.items() if has[name] != value}
    if wrong:
        words = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in wrong.items())
        raise ConfigError(f"purejaxrl: expected the settings that its scripts fix, got others; add --set {words}")


def check_env_options(peer: str, config: TrainConfig) -> None:
    """Raise if the environment has options that the peer does not support."""
    other = sorted(set(config.environment.env_options) - {"backend"})
    if other:
        raise ConfigError(f"{peer}: expected no env_options besides backend, got {other[0]}")


_GYMNAX_FIXED: dict[str, Any] = {"normalise_obs": False, "normalise_reward": False}
_MLP: dict[str, Any] = {"torso": "mlp", "activation": "tanh", "layer_norm": False, "shared_torso": False}
_BRAX_FIXED: dict[str, Any] = {**_MLP, "hidden": (256, 256), "normalise_obs": True, "normalise_reward": True}


def _purejaxrl_settings(config: TrainConfig, name: str) -> dict[str, Any]:
    return {
        "LR": config.algorithm.learning_rate,
        "NUM_ENVS": config.environment.num_envs,
        "NUM_STEPS": config.environment.rollout_length,
        "UPDATE_EPOCHS": config.algorithm.epochs,
        "NUM_MINIBATCHES": config.batch_size // config.algorithm.minibatch_size,
        "GAMMA": config.algorithm.gamma,
        "GAE_LAMBDA": config.algorithm.lam,
        "CLIP_EPS": config.algorithm.clip,
        "ENT_COEF": config.algorithm.entropy_coef,
        "VF_COEF": config.algorithm.value_coef,
        "MAX_GRAD_NORM": config.algorithm.max_grad_norm,
        "ACTIVATION": "tanh",
        "ENV_NAME": name,
        "ANNEAL_LR": True,
        "NORMALIZE_ENV": True,
        "DEBUG": False,
    }


def brax_backend(config: TrainConfig) -> str | None:
    """The physics backend of a Brax environment; None if there is no choice."""
    backend, _, name = config.environment.env.partition("/")
    physics = config.environment.env_options.get("backend") or (physics_of(name)[0] if backend == "brax" else None)
    return None if physics == "none" else physics


_loading = threading.Lock()  # its modules have global names, and works may be prepared in parallel


def _load_purejaxrl(script: Path, backend: str | None, network: partial[ActorCritic] | None) -> Any:
    """`make_train` of the script, with stubs for imports that it does not need here, and with `network` if given."""
    with _loading:
        module = _load_scripts(script)
    if hasattr(module, "gymnax"):
        module.gymnax = types.SimpleNamespace(make=legacy_gymnax)
    if backend is not None:  # the script has no setting for it; its wrapper uses positional
        module.BraxGymnaxWrapper = partial(module.BraxGymnaxWrapper, backend=backend)
    if network is not None:
        module.ActorCritic = network
    return module.make_train


def _load_scripts(script: Path) -> Any:
    gymnax.import_gymnax()
    stand_in("navix")
    chex = stand_in("chex")
    chex.PRNGKey = chex.Array = jax.Array
    distrax = stand_in("distrax")
    distrax.Categorical = lambda logits: _Distrax(Categorical(jax.nn.log_softmax(logits)))
    distrax.MultivariateNormalDiag = lambda mean, scale: _Distrax(
        DiagonalGaussian(mean, jnp.broadcast_to(jnp.log(scale), mean.shape))
    )
    import_brax()
    load_script("wrappers", script.with_name("wrappers.py"))
    return load_script(f"purejaxrl_{script.stem}", script)


def stand_in(name: str) -> Any:
    """An empty module in place of a package that is not installed."""
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) is None:
        module = sys.modules[name] = types.ModuleType(name)
    return module


def load_script(name: str, path: Path) -> Any:
    """Import a file of a peer's checkout as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"checkout: expected a Python file, got {path}, which cannot be loaded")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def legacy_gymnax(name: str) -> Any:
    """A gymnax 1.x environment with the five-value step of 0.x; a time limit counts as termination."""
    env, params = gymnax.import_gymnax().make(name)

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


class _Distrax(NamedTuple):
    """A distribution with the methods of distrax that the scripts use."""

    dist: Distribution

    def sample(self, seed: Array) -> Array:
        return self.dist.sample(seed)

    def log_prob(self, action: Array) -> Array:
        return self.dist.log_prob(action)

    def entropy(self) -> Array:
        return self.dist.entropy()


class ActorCritic(nn.Module):
    """Networks of nextpolicy with the interface of the script's `ActorCritic`, which reads flattened observations."""

    action_dim: int
    activation: str  # the script's; `networks` has its own
    networks: Networks
    obs_shape: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: Array) -> tuple[_Distrax, Array]:
        params = self.param("networks", self.networks.init)
        policy, value = self.networks.actor_critic(params, None)(obs.reshape((*obs.shape[:-1], *self.obs_shape)))
        return _Distrax(policy), value


def own_network(config: TrainConfig) -> partial[ActorCritic] | None:
    """The work's network in float32 for the script `ppo.py`; None if the script's own network is the same."""
    spec, net = _gymnax_spec(config), config.net
    mlp = torso_kind(spec, net) == "mlp" and not net.layer_norm and not net.shared_torso
    if mlp and (tuple(net.hidden), net.activation) == ((64, 64), "tanh"):
        return None
    networks = build(spec, dataclasses.replace(net, compute_dtype="float32"))
    return partial(ActorCritic, networks=networks, obs_shape=spec.obs_shape)


def _gymnax_spec(config: TrainConfig) -> EnvSpec:
    spec = gymnax.make(config.environment.env.split("/", 1)[1]).spec
    if not isinstance(spec.action, Discrete) or spec.obs_table is not None:
        raise ConfigError(f"purejaxrl: expected discrete actions and Box observations on gymnax/, got {spec.id}")
    return spec
