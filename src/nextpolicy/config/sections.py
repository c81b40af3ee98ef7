"""The sections of a configuration that every algorithm and criterion shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from nextpolicy.settings import EXACT_INTEGER, INT32_MAX, Settings, pytree, setting


@pytree
@dataclass(frozen=True)
class EnvConfig(Settings):
    """Which environment, how many of it, and how they are sampled."""

    env: str = setting(
        "four-rooms", "Environment id with its backend, e.g. gymnax/CartPole-v1; `nextpolicy envs` lists them."
    )
    env_options: dict[str, Any] = setting({}, "Options of the environment, e.g. backend=spring or noise=success.")
    num_envs: int = setting(64, "Environments that each member steps in parallel.", low=1, high=1_000_000)
    rollout_length: int = setting(128, "Steps that each environment takes per round.", low=1, high=1_000_000)
    warmup_steps: int = setting(
        0,
        "Random-action steps before training that spread episodes out and fill the statistics.",
        low=0,
        high=INT32_MAX,
    )
    reward_clip: float = setting(
        math.inf, "Learn from rewards clipped to [-x, x]; returns are reported unclipped. inf for no clip.", low=0
    )


@pytree
@dataclass(frozen=True)
class NetConfig(Settings):
    """Actor and critic."""

    torso: Literal["auto", "mlp", "small-cnn", "nature", "impala"] = setting(
        "auto", "Network that reads observations; auto goes by their shape."
    )
    policy: Literal["auto", "categorical", "gaussian"] = setting(
        "auto", "Distribution of actions; auto goes by the environment, and a mismatch is an error."
    )
    hidden: tuple[int, ...] = setting((64, 64), "Widths of the dense layers.")
    activation: Literal["tanh", "relu", "silu"] = setting("tanh", "Activation of the dense layers.")
    layer_norm: bool = setting(
        False,
        "LayerNorm after each dense layer and after the convolution of small-cnn; not in those of impala and nature.",
    )
    shared_torso: bool = setting(False, "Whether the critic reads the actor's torso instead of its own.")
    log_std_init: float = setting(0.0, "Initial log standard deviation of continuous actions.", low=-20, high=20)
    compute_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Type of activations; auto is bfloat16 in the fused MLP on NVIDIA GPUs, else float32. Parameters are float32.",
    )


@pytree
@dataclass(frozen=True)
class RunConfig(Settings):
    """What is trained, how long, how many members, and where to."""

    algo: tuple[str, ...] = setting(("sv-dynamic",), "Algorithm, or several variants of one, which train side by side.")
    criterion: str = setting("stable-values", "When the target of a dynamic algorithm follows its behavioural policy.")
    static_k: int = setting(8, "sv-static: rounds between target updates.", traced=True, low=1, high=EXACT_INTEGER)
    total_env_steps: int = setting(
        1_000_000, "Environment steps per member; rounded down to whole rounds.", low=1, high=10**15
    )
    seeds: tuple[int, ...] = setting((0,), "Seeds: a number N means 0 to N-1; several numbers are used as they are.")
    sweep: dict[str, tuple[float, ...]] = setting(
        {}, "Traced fields to vary, e.g. learning_rate=1e-4,3e-4; every combination becomes a member."
    )
    population: Literal["auto", "vmap", "map", "force-vmap"] = setting(
        "auto",
        "Members side by side (vmap) or one after another (map); auto goes by the device. "
        "vmap is an error on a CPU, where it can hang; force-vmap takes the risk.",
    )
    devices: int = setting(0, "Local devices to spread over; 0 for all of them.", low=0, high=1_000_000)
    block_rounds: int = setting(
        0,
        "Rounds per compiled call, at most 512; metrics and checkpoints are written after each. 0 aims at a few "
        "seconds.",
        low=0,
        high=INT32_MAX,
    )
    tensorboard: bool = setting(False, "Whether metrics also go to TensorBoard files in the run folder.")
    wandb: str = setting("", "Weights & Biases project that metrics also go to; empty for none.")
    keep_checkpoints: int = setting(2, "Number of checkpoints to keep.", low=1, high=1_000_000)
