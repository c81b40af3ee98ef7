"""Settings and file writing of the Atari benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nextpolicy.config import TrainConfig, presets

# The paper's settings are for 5e7 steps. A run of minutes has about 1e6 steps, so this uses common PPO settings for
# Atari (clipped rewards, gamma .99, 32 gradient steps per 2048 samples, constant learning rate) and a gate that accepts
# within a few rounds.
SHORT_RUN: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "learning_rate_final": 2.5e-4,
    "gamma": 0.99,
    "max_grad_norm": 0.5,
    "advantage_kind": "retrace",
    "delta_v": 0.05,
    "k_min": 1,
    "k_max": 8,
    "decay_fraction": 0.0,
}


def config(options: argparse.Namespace, game: str, total: int, **fields: Any) -> TrainConfig:
    """The paper's Atari settings with another network and length."""
    env_options = {"image_size": options.image_size, "threads": options.threads, **fields.pop("env_options", {})}
    torso = fields.get("torso", options.torso)
    defaults = {
        "torso": torso,
        "hidden": {"nature": (512,), "impala": (256,)}.get(torso, (64,)),
        "num_envs": options.num_envs,
        "rollout_length": options.rollout_length,
        "minibatch_size": options.minibatch_size,
        "total_env_steps": total,
        "env_options": env_options,
    }
    return presets.build(f"atari/{game}", **{**defaults, **fields})


def write(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2, default=str) + "\n")
    part.replace(path)
