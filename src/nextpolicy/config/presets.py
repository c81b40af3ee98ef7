"""Presets: the paper's settings in two readings, and defaults for environments that the paper does not cover."""

from __future__ import annotations

import math
from typing import Any

from nextpolicy.algos import VARIANTS
from nextpolicy.config.fields import FIELDS, active_fields, nearest, settings_classes
from nextpolicy.config.parse import convert
from nextpolicy.config.schema import TrainConfig
from nextpolicy.envs.registry import preset_of
from nextpolicy.settings import ConfigError, shown

_SMALL_CNN: dict[str, Any] = {"torso": "small-cnn", "hidden": (128,), "activation": "relu", "layer_norm": True}

FOUR_ROOMS: dict[str, Any] = {
    **_SMALL_CNN,
    "total_env_steps": 195 * 8 * 128,
    "num_envs": 8,
    "rollout_length": 128,
    "minibatch_size": 256,
    "learning_rate": 2.5e-4,
    "learning_rate_final": 0.0,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.5,
    "rho_max": 5.0,
    "delta_v": 0.1,
    "k_min": 4,
    "k_max": 33,
    "static_k": 5,
}

MINATAR: dict[str, Any] = {
    **_SMALL_CNN,
    "total_env_steps": 10_000_000,
    "num_envs": 64,
    "rollout_length": 128,
    "minibatch_size": 1024,
    "learning_rate": 3e-4,
    "learning_rate_final": 1e-6,
    "clip": 0.1,
    "max_grad_norm": 1.0,
    "rho_max": 5.0,
    "delta_v": 0.01,
    "k_min": 9,
    "k_max": 33,
    "decay_fraction": 0.2,
    "static_k": 9,
}

BRAX: dict[str, Any] = {
    "total_env_steps": 50_000_000,
    "num_envs": 2048,
    "rollout_length": 10,
    "minibatch_size": 1024,
    "hidden": (256, 256),
    "log_std_init": 0.5,
    "learning_rate": 3e-4,
    "learning_rate_final": 1e-5,
    "entropy_coef": 0.001,
    "max_grad_norm": 1.0,
    "rho_max": 100.0,
    "delta_v": 0.05,
    "k_min": 2,
    "k_max": 8,
    "decay_fraction": 0.05,
    "decay_k_max": True,
    "static_k": 8,
    "normalise_obs": True,
    "normalise_reward": True,
}

ATARI: dict[str, Any] = {
    "total_env_steps": 50_000_000,
    "num_envs": 64,
    "rollout_length": 128,
    "minibatch_size": 1024,
    "torso": "impala",
    "hidden": (256,),
    "activation": "relu",
    "layer_norm": True,
    "learning_rate": 3e-4,
    "learning_rate_final": 1e-6,
    "gamma": 0.995,
    "clip": 0.1,
    "value_coef": 0.25,
    "max_grad_norm": 1.0,
    "rho_max": 5.0,
    "delta_v": 0.01,
    "k_min": 9,
    "k_max": 33,
    "decay_fraction": 0.2,
    "static_k": 9,
}

# MuJoCo Playground's settings of PPO for its control suite, as far as there are fields for them; the gate is that of
# `default`. docs/playground.md lists the differences.
PLAYGROUND: dict[str, Any] = {
    "total_env_steps": 60_000_000,
    "num_envs": 2048,
    "rollout_length": 480,
    "warmup_steps": 30,  # at random ages, or all environments would be equally old
    "epochs": 16,
    "minibatch_size": 30 * 1024,
    "hidden": (256, 256),
    "activation": "silu",
    "policy": "squashed",
    "log_std_init": -0.37,
    "learning_rate": 1e-3,
    "learning_rate_final": 1e-3,
    "gamma": 0.995,
    "clip": 0.3,
    "value_clip": float("inf"),
    "entropy_coef": 0.01,
    "max_grad_norm": float("inf"),
    "adam_eps": 1e-8,
    "advantage_kind": "vtrace",
    "advantage_norm": "standardise",
    "delta_v": 0.1,
    "k_min": 1,
    "k_max": 4,
    "static_k": 4,
    "normalise_obs": True,
}

# The PPO of Craftax's authors (Craftax_Baselines, ppo.py), as far as there are fields for it; the gate is that of
# `default`. docs/craftax-navix.md lists the differences.
CRAFTAX: dict[str, Any] = {
    "total_env_steps": 1_000_000_000,
    "num_envs": 1024,
    "rollout_length": 64,
    "minibatch_size": 8192,
    "hidden": (512, 512, 512),
    "learning_rate": 2e-4,
    "learning_rate_final": 0.0,
    "lam": 0.8,
    "value_clip": 0.2,
    "max_grad_norm": 1.0,
    "advantage_kind": "vtrace",
    "advantage_norm": "standardise",
    "delta_v": 0.1,
    "k_min": 1,
    "k_max": 4,
    "static_k": 4,
}

# For classic control and all other environments: small MLPs, short rounds, normalised inputs. `retrace` is biased
# off-policy (see core/returns.py), but less than the paper's equation.
DEFAULT: dict[str, Any] = {
    "total_env_steps": 500_000,
    "num_envs": 16,
    "rollout_length": 128,
    "minibatch_size": 256,
    "learning_rate": 1e-3,
    "learning_rate_final": 1e-5,
    "value_clip": float("inf"),
    "advantage_kind": "vtrace",
    "delta_v": 0.1,
    "k_min": 1,
    "k_max": 4,
    "static_k": 4,
    "normalise_obs": True,
    "normalise_reward": True,
}

PRESETS: dict[str, dict[str, Any]] = {
    "four-rooms": FOUR_ROOMS,
    "minatar": MINATAR,
    "brax": BRAX,
    "atari": ATARI,
    "playground": PLAYGROUND,
    "craftax": CRAFTAX,
    "default": DEFAULT,
}
_NOT_IN_THE_PAPER = ("playground", "craftax", "default")
# What the paper's tables of settings leave open (docs/paper.md), by environments: `paper` as in PureJaxRL, on which the
# paper builds; `corrected` as we recommend, with true successors at time limits, a warm-up of one round, and advantages
# on Brax that are not divided by their standard deviation, which late in training amplifies noise (docs/results.md).
READINGS: dict[str, dict[str, dict[str, Any]]] = {
    "corrected": {"brax": {"warmup_steps": 10, "advantage_norm": "none"}},
    "paper": {
        "brax": {"warmup_steps": 1000, "truncation": "terminal"},
        "minatar": {"truncation": "terminal"},
    },
}
# Changes for algorithms other than PPO: (algorithm, preset) -> fields. Fields the algorithm does not have are dropped.
_SAC: dict[str, Any] = {"hidden": (256, 256), "activation": "relu", "learning_rate": 3e-4}
_PQN: dict[str, Any] = {
    "learning_rate": 5e-4,
    "learning_rate_final": 0.0,
    "max_grad_norm": 10.0,
    "layer_norm": True,
}
ALGORITHM_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("pqn", "minatar"): {**_PQN, "num_envs": 128, "rollout_length": 32, "minibatch_size": 128},  # Gallici et al. (2024)
    ("pqn", "default"): {
        **_PQN,
        "hidden": (128, 128),
        "activation": "relu",
        "rollout_length": 32,
        "minibatch_size": 64,
        "epochs": 4,
        "normalise_obs": False,
    },
    ("pqn", "four-rooms"): _PQN,
    ("pqn", "atari"): _PQN,
    ("pqn", "craftax"): _PQN,
    ("sac", "default"): {
        **_SAC,
        "total_env_steps": 100_000,
        "num_envs": 4,
        "rollout_length": 4,
        "warmup_steps": 250,
        "normalise_obs": False,
        "minibatch_size": 256,
    },
    ("sac", "brax"): {
        **_SAC,
        "total_env_steps": 5_000_000,
        "num_envs": 128,
        "rollout_length": 1,
        "updates_per_step": 0.5,
        "minibatch_size": 512,
        "learning_rate": 6e-4,
        "warmup_steps": 64,
        "reward_scale": 10.0,
    },
    ("sac", "playground"): {
        **_SAC,
        "policy": "auto",
        "total_env_steps": 5_000_000,
        "num_envs": 128,
        "rollout_length": 1,
        "updates_per_step": 8 / 128,
        "minibatch_size": 512,
        "replay_size": 4 * 2**20,
        "learning_rate": 1e-3,
        "gamma": 0.99,
        "warmup_steps": 64,
    },
}


def preset_for(env: str) -> str:
    """The preset of an environment, from its backend; `default` if there is none for it."""
    return preset_of(env)


def build(env: str, *, preset: str | None = None, **overrides: Any) -> TrainConfig:
    """The configuration for `env`: its preset (by default `corrected`, if the paper covers it), then `overrides`.

    `preset` is `corrected` or `paper`, or a key of `PRESETS`: the settings of other environments.
    """
    env = convert(FIELDS["env"], env)
    own, known = preset_for(env), [*READINGS, *PRESETS]
    if preset is not None and not isinstance(preset, str):
        raise ConfigError(f"preset: expected one of {', '.join(known)}, got {shown(preset)}")
    reading, name = (preset, own) if preset in READINGS else ("corrected", preset or own)
    if preset in READINGS and own in _NOT_IN_THE_PAPER:
        raise ConfigError(f"preset: expected {own!r} for {env}, which the paper does not cover, got {preset!r}")
    if name not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(known)}, got {preset!r}{nearest(str(name), known)}")
    algo, criterion = (convert(FIELDS[n], overrides.get(n, TrainConfig().value(n))) for n in ("algo", "criterion"))
    classes = settings_classes(algo, criterion)
    active = active_fields(*classes)
    changes = READINGS[reading].get(name, {}) | ALGORITHM_PRESETS.get((VARIANTS[algo[0]][0].name, name), {})
    chosen = {field: value for field, value in {**PRESETS[name], **changes}.items() if field in active}
    fitting = _fitting(chosen, overrides) if classes[0].divides_batch else {}
    return TrainConfig().replace(**{**chosen, "env": env, **fitting, **overrides})


def _fitting(preset: dict[str, Any], overrides: dict[str, Any]) -> dict[str, int]:
    """A minibatch size if the preset's does not divide the batch; it keeps the number of minibatches if possible."""
    if "minibatch_size" not in preset or "minibatch_size" in overrides:
        return {}
    batch = {name: convert(FIELDS[name], {**preset, **overrides}[name]) for name in ("num_envs", "rollout_length")}
    size, samples = preset["minibatch_size"], math.prod(batch.values())
    if min(batch.values()) < 1 or samples % size == 0:
        return {}
    wanted = preset["num_envs"] * preset["rollout_length"] // size
    return {"minibatch_size": samples // max(n for n in range(1, wanted + 1) if samples % n == 0)}
