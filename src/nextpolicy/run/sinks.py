"""Optional places for metrics beside the Parquet parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from nextpolicy.config import ConfigError, TrainConfig

_KEYS = ("round", "env_steps", "member", "seed", "variant")


class Sink(Protocol):
    """Told of every block's rows."""

    def write(self, frame: pd.DataFrame) -> None: ...

    def close(self) -> None: ...


def make(config: TrainConfig, folder: Path) -> list[Sink]:
    """The sinks the configuration asks for."""
    sinks: list[Sink] = []
    if config.run.tensorboard:
        sinks.append(TensorBoard(folder / "tensorboard"))
    if config.run.wandb:
        sinks.append(WeightsAndBiases(config, folder))
    return sinks


def _scalars(frame: pd.DataFrame) -> Any:
    """(step, {name: value}) of each row; numbers that are not finite are left out."""
    for row in frame.to_dict("records"):
        prefix = f"{row['variant']}/seed{row['seed']}"
        values = {f"{prefix}/{k}": float(v) for k, v in row.items() if k not in _KEYS}
        yield int(row["env_steps"]), {k: v for k, v in values.items() if math.isfinite(v)}


class TensorBoard:
    """Event files under the run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError('tensorboard: needs an extra: pip install "nextpolicy[tensorboard]"') from None
        self.writer = SummaryWriter(str(folder))

    def write(self, frame: pd.DataFrame) -> None:
        for step, values in _scalars(frame):
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """One W&B run per population."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError('wandb: needs an extra: pip install "nextpolicy[wandb]"') from None
        self.run = wandb.init(project=config.run.wandb, name=folder.name, dir=str(folder), config=config.flat())

    def write(self, frame: pd.DataFrame) -> None:
        for step, values in _scalars(frame):
            self.run.log({**values, "env_steps": step})

    def close(self) -> None:
        self.run.finish()
