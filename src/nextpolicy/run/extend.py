"""Extend a run: train it for more environment steps than it was started with.

`config.json` then has the new total and, in `extended`, how many rounds were done and what the total was before.
"""

from __future__ import annotations

from typing import Any

from nextpolicy import runfiles
from nextpolicy.config import FIELDS, ConfigError, TrainConfig, convert
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.restart import check_config, check_state
from nextpolicy.runfiles import EVALUATION, STUDY, write_json


def longer(folder: RunFolder, total_env_steps: Any) -> TrainConfig:
    """The configuration of a run with another total. Writes nothing."""
    config = folder.config()
    extended = config.replace(total_env_steps=convert(FIELDS["total_env_steps"], total_env_steps))
    if extended.num_rounds < config.num_rounds:
        total, got = config.num_rounds * config.batch_size, extended.run.total_env_steps
        raise ConfigError(
            f"total_env_steps: expected at least {total:,}, the total of {folder.path}, got {got:,}; "
            "a run cannot be shortened"
        )
    if (folder.path / STUDY).exists():
        raise RunError(f"run: {folder.path} is a study, which cannot be extended; start another with more rounds")
    check_config(folder)
    check_state(folder)
    return extended if extended.num_rounds > config.num_rounds else config


def record(folder: RunFolder, extended: TrainConfig) -> str:
    """Write the new total of a locked run, and return a line about it; empty if it is the old one."""
    config = folder.config()
    before, after = config.num_rounds, extended.num_rounds
    if after == before:
        return ""
    done = min(runfiles.newest_manifest(folder.checkpoints)[0], before)
    evaluation = folder.path / EVALUATION
    if evaluation.is_file():  # of the policy before the extension
        evaluation.rename(evaluation.with_name(f"evaluation-{done:08d}.json"))
    raw = folder.raw_config()
    history = [*raw.get("extended", []), {"rounds": done, "total_env_steps": config.run.total_env_steps}]
    total = extended.run.total_env_steps
    write_json(folder.path / "config.json", {**raw, "total_env_steps": total, "extended": history})
    folder.set_status("stopped", rounds_done=done, rounds=after)
    steps = [f"{rounds * config.batch_size:,}" for rounds in (before, after)]
    return (
        f"extended from {steps[0]} to {steps[1]} steps, {done} of {after} rounds done; the schedules of the learning "
        "rate and of the gate now run over the new total"
    )
