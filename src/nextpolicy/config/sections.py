"""The sections of a configuration that all algorithms and criteria share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from nextpolicy.settings import EXACT_INTEGER, INT32_MAX, Settings, pytree, setting


@pytree
@dataclass(frozen=True)
class EnvConfig(Settings):
    """The environment and how data are collected from it."""

    env: str = setting(
        "four-rooms", "Environment id with its backend, e.g. gymnax/CartPole-v1; `nextpolicy envs` lists them."
    )
    env_options: dict[str, Any] = setting({}, "Options of the environment, e.g. backend=spring or noise=success.")
    num_envs: int = setting(64, "Environments that each member steps in parallel.", low=1, high=1_000_000)
    rollout_length: int = setting(128, "Steps that each environment takes per round.", low=1, high=1_000_000)
    warmup_steps: int = setting(
        0,
        "Steps with random actions that each environment takes before training. They desynchronise episodes and "
        "initialise statistics.",
        low=0,
        high=INT32_MAX,
    )
    reward_clip: float = setting(
        math.inf,
        "Clip rewards to [-x, x] for learning; reported returns are unclipped. inf for no clip.",
        low=1e-30,
        interval="above 0, or inf",
    )


@pytree
@dataclass(frozen=True)
class NetConfig(Settings):
    """The networks of actor and critic."""

    torso: Literal["auto", "mlp", "small-cnn", "nature", "impala"] = setting(
        "auto", "Network that encodes observations; auto selects it by their shape."
    )
    policy: Literal["auto", "categorical", "gaussian", "squashed"] = setting(
        "auto",
        "Action distribution; auto selects it by the action space and the algorithm, and a mismatch is an error. "
        "squashed: a Gaussian whose standard deviation depends on the state, squashed into the bounds by tanh. "
        "With SAC, only auto: its policy is always squashed.",
    )
    hidden: tuple[int, ...] = setting((64, 64), "Widths of the dense layers.")
    activation: Literal["tanh", "relu", "silu"] = setting("tanh", "Activation of the dense layers.")
    layer_norm: bool = setting(
        False,
        "LayerNorm after each dense layer and after the convolution of small-cnn; not in those of impala and nature.",
    )
    shared_torso: bool = setting(False, "Whether actor and critic share one torso.")
    log_std_init: float = setting(
        0.0,
        "Initial log standard deviation of continuous actions, before tanh if squashed; not SAC's.",
        low=-20,
        high=20,
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Dtype of activations; auto is bfloat16 where fused GPU kernels exist, else float32. Parameters are float32.",
    )


@pytree
@dataclass(frozen=True)
class RunConfig(Settings):
    """The algorithm, the training budget, the members of the population, devices and logging."""

    algo: tuple[str, ...] = setting(("sv-dynamic",), "Algorithm, or several variants of one, trained together.")
    criterion: str = setting("stable-values", "Criterion for updating the target policy of a dynamic algorithm.")
    static_k: int = setting(8, "sv-static: rounds between target updates.", traced=True, low=1, high=EXACT_INTEGER)
    total_env_steps: int = setting(
        1_000_000, "Environment steps per member, rounded down to whole rounds.", low=1, high=10**15
    )
    seeds: tuple[int, ...] = setting((0,), "One number N for the seeds 0 to N-1, or several seeds.")
    init_from: str = setting(
        "", "Run folder whose parameters and statistics to start from; it has 1 member, or as many as this run."
    )
    sweep: dict[str, tuple[float, ...]] = setting(
        {}, "Values of traced fields, e.g. learning_rate=1e-4,3e-4; each combination is a member."
    )
    population: Literal["auto", "vmap", "map", "force-vmap"] = setting(
        "auto",
        "Train members in parallel (vmap) or sequentially (map); auto selects by device. "
        "vmap is an error on a CPU, where it can deadlock; force-vmap takes the risk.",
    )
    devices: int = setting(0, "Number of local devices to use; 0 for all.", low=0, high=1_000_000)
    block_rounds: int = setting(
        0,
        "Rounds between checkpoints, at most 512; metrics are written with them. 0 selects a number that takes four "
        "seconds, or up to a minute if a checkpoint takes more than a tenth of that.",
        low=0,
        high=INT32_MAX,
    )
    tensorboard: bool = setting(False, "Whether to also write metrics to TensorBoard files in the run folder.")
    wandb: str = setting("", "Weights & Biases project to also log metrics to; empty for none.")
    keep_checkpoints: int = setting(2, "Number of checkpoints to keep.", low=1, high=1_000_000)
