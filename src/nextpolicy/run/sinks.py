"""Optional outputs for metrics in addition to the Parquet parts: TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from nextpolicy import extras
from nextpolicy.config import ConfigError, Member, TrainConfig

_KEYS = ("round", "env_steps", "member", "seed", "variant")
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}  # field (also the name of the extra) -> package


class Sink(Protocol):
    """An output for metrics. `write` is called with the rows of every block."""

    def write(self, frame: pd.DataFrame) -> None: ...

    def close(self) -> None: ...


def check(config: TrainConfig) -> None:
    """Raise if a configured sink needs a package that is not installed."""
    for field, package in _PACKAGES.items():
        if getattr(config.run, field) and importlib.util.find_spec(package) is None:
            raise ConfigError(f"{field}: {package} is not installed; {extras.advice(field)}")


def make(config: TrainConfig, folder: Path) -> list[Sink]:
    """The sinks enabled in the configuration."""
    check(config)
    sinks: list[Sink] = []
    if config.run.tensorboard:
        sinks.append(TensorBoard(config.members(), folder / "tensorboard"))
    if config.run.wandb:
        sinks.append(WeightsAndBiases(config, folder))
    return sinks


def _scalars(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Each row and its finite metrics as {name: value}."""
    for row in frame.to_dict("records"):
        values = {str(k): float(v) for k, v in row.items() if k not in _KEYS}
        yield row, {k: v for k, v in values.items() if math.isfinite(v)}


def folder_names(members: list[Member]) -> list[str]:
    """A unique folder name `<variant>-seed<k>` for each member, without characters that file systems reject."""
    plain = [re.sub(r"[^A-Za-z0-9.=+_-]+", "_", m.variant).strip("_") for m in members]
    names = [f"{variant}-seed{m.seed}" for variant, m in zip(plain, members, strict=True)]
    return [name if names.count(name) == 1 else f"{name}-member{i}" for i, name in enumerate(names)]


class TensorBoard:
    """Event files in the run folder, with one subfolder per member so that TensorBoard overlays them."""

    def __init__(self, members: list[Member], folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self.writers = [SummaryWriter(str(folder / name)) for name in folder_names(members)]

    def write(self, frame: pd.DataFrame) -> None:
        for row, values in _scalars(frame):
            for name, value in values.items():
                self.writers[row["member"]].add_scalar(name, value, int(row["env_steps"]))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class WeightsAndBiases:
    """One W&B run per population."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        import wandb

        self.run = wandb.init(project=config.run.wandb, name=folder.name, dir=str(folder), config=config.flat())

    def write(self, frame: pd.DataFrame) -> None:
        for row, values in _scalars(frame):
            prefix = f"{row['variant']}/seed{row['seed']}"
            self.run.log({**{f"{prefix}/{k}": v for k, v in values.items()}, "env_steps": int(row["env_steps"])})

    def close(self) -> None:
        self.run.finish()
