"""Runs the Four Rooms study: a normal run folder, with the tables of every round beside its metrics.

    tables/start.npz, tables/part-*.npz   log-probabilities and critic on all 104 observations, one part per block
    exact.parquet                         the exact quantities of every member and round

A stopped study resumes from its last checkpoint with bitwise equal results. Blocks whose tables were not written are
repeated.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.config import ConfigError, Member, TrainConfig, presets, shown, whole
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job, make_job
from nextpolicy.run.program_cache import enable_cache
from nextpolicy.run.training import run_job
from nextpolicy.runfiles import STUDY, read_metrics, write_json, write_whole
from nextpolicy.studies.four_rooms import exact, summary
from nextpolicy.tabular import four_rooms_mdp
from nextpolicy.tabular.mdp import TabularMDP

ALGOS = ("ppo", "sv-static", "sv-dynamic")
ROUNDS = 195
# A checkpoint of 24 members is about 170 MB, so shorter blocks would spend most of the time on saving.
BLOCK_ROUNDS = 13
_NAME = re.compile(r"part-(\d{8})-(\d{8})\.npz")


@dataclass(frozen=True, eq=False)
class Study:
    """A finished study: the trained population and the exact quantities of every round. Columns are [M, K]."""

    path: Path
    config: TrainConfig
    mdp: TabularMDP
    trajectory: exact.Trajectory
    metrics: dict[str, np.ndarray]
    exact: dict[str, np.ndarray]

    @property
    def members(self) -> list[Member]:
        return self.config.members()

    @property
    def rounds(self) -> int:
        return self.trajectory.accepted.shape[1]

    @property
    def algos(self) -> tuple[str, ...]:
        return self.config.run.algo

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per member."""
        return summary.member_rows(self.mdp, self.members, self.metrics, self.exact)

    def column(self, algo: str, name: str) -> np.ndarray:
        """A column of one algorithm, [seeds, K]."""
        column = self.exact[name] if name in self.exact else self.metrics[name]
        return np.asarray(column)[[i for i, m in enumerate(self.members) if m.algo == algo]]

    def index(self, algo: str, seed: int) -> int:
        """The index of the member with this algorithm and seed."""
        return next(i for i, m in enumerate(self.members) if (m.algo, m.seed) == (algo, seed))


def configuration(noise: str = "fail", rounds: int = ROUNDS, **fields: Any) -> TrainConfig:
    """The preset for the three algorithms, with `fields` changed by flat name."""
    rounds = whole("rounds", rounds, 1, 2**31 - 1)
    if fields.get("init_from"):
        raise ConfigError(f"init_from: expected none in a study, got {shown(fields['init_from'])}")
    four_rooms_mdp.move_probabilities(noise)
    given = {"seeds": 8, "block_rounds": min(BLOCK_ROUNDS, rounds), **fields}
    config = presets.build("four-rooms", algo=ALGOS, env_options={"noise": noise}, **given)
    return config.replace(total_env_steps=rounds * config.batch_size)


def run(config: TrainConfig, path: str | Path, *, quiet: bool = False) -> Study:
    """Train in a new folder."""
    enable_cache()
    job = make_job(config, observer=exact.observe)
    folder = RunFolder.create(path, config, {"custom": []})
    try:
        write_json(folder.path / STUDY, {"study": "four-rooms"})
        return _train(job, folder, resume=False, quiet=quiet)
    finally:
        folder.unlock()


def resume(path: str | Path, *, quiet: bool = False) -> Study:
    """Resume a stopped study, or load a finished one."""
    folder = RunFolder.open(path)
    if not (folder.path / STUDY).is_file():
        raise RunError(f"resume: expected the folder of a Four Rooms study, got {path}, which holds another run")
    folder.lock()
    try:
        enable_cache()
        job = make_job(folder.config(), observer=exact.observe)
        return _train(job, folder, resume=True, quiet=quiet)
    finally:
        folder.unlock()


def _train(job: Job, folder: RunFolder, *, resume: bool, quiet: bool) -> Study:
    tables = folder.path / "tables"
    tables.mkdir(exist_ok=True)
    on_disk = _rounds_on_disk(tables)
    if on_disk < job.config.num_rounds:
        _save(tables / "start.npz", exact.observe_start(job.setup, job.seeds))
        # A block is complete only with its tables; training resumes after the last complete block.

        def keep(first: int, block: dict[str, np.ndarray], observed: Any) -> None:
            last = first + len(block["accepted"][0]) - 1
            _save(tables / f"part-{first:08d}-{last:08d}.npz", observed)

        run_job(job, folder, resume=resume, quiet=quiet, on_block=keep, at_most=on_disk)
    return load(folder, job.config)


def load(folder: RunFolder, config: TrainConfig) -> Study:
    """Load a finished study and compute its exact quantities from its tables."""
    frame = read_metrics(folder.path)
    shape = (len(config.members()), config.num_rounds)
    names = [c for c in frame if c not in ("round", "env_steps", "member", "seed", "variant")]
    columns = {name: frame[name].to_numpy().reshape(shape) for name in names}
    parts = [_load(path) for _, _, path in _parts(folder.path / "tables")]
    rounds = exact.Tables(*(np.concatenate(x, axis=1) for x in zip(*parts)))
    trajectory = exact.trajectory(_load(folder.path / "tables" / "start.npz"), rounds, columns["accepted"])
    mdp = four_rooms_mdp.four_rooms(config.environment.env_options.get("noise", "fail"), config.algorithm.gamma)
    study = Study(folder.path, config, mdp, trajectory, columns, exact.quantities(mdp, trajectory))
    _write_exact(study, frame)
    return study


def _write_exact(study: Study, frame: pd.DataFrame) -> None:
    columns = frame[["round", "env_steps", "member", "seed", "variant", "accepted"]].copy()
    table = pd.concat([columns, pd.DataFrame({k: v.reshape(-1) for k, v in study.exact.items()})], axis=1)
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write_whole(study.path / "exact.parquet", buffer.getvalue())


def _save(path: Path, tables: exact.Tables) -> None:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(x, np.float32) for name, x in tables._asdict().items()}
    np.savez(buffer, **arrays)
    write_whole(path, buffer.getvalue())


def _load(path: Path) -> exact.Tables:
    with np.load(path) as stored:
        return exact.Tables(**{name: stored[name] for name in exact.Tables._fields})


def _parts(folder: Path) -> list[tuple[int, int, Path]]:
    found = ((_NAME.fullmatch(p.name), p) for p in folder.glob("part-*.npz"))
    return sorted((int(m[1]), int(m[2]), p) for m, p in found if m)


def _rounds_on_disk(folder: Path) -> int:
    """Number of rounds with tables, counted up to the first gap; later files are removed."""
    expected = 0
    for first, last, path in _parts(folder):
        if first == expected:
            expected = last + 1
        else:
            path.unlink()
    return expected
