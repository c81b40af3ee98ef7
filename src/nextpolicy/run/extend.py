"""Extend a run: train it for more environment steps than it was started with.

`config.json` then has the new total and, in `extended`, how many rounds were done and what the total was before.
"""

from __future__ import annotations

from typing import Any

from nextpolicy import runfiles
from nextpolicy.config import FIELDS, ConfigError, convert
from nextpolicy.run.folder import RunFolder
from nextpolicy.run.restart import check_config
from nextpolicy.runfiles import write_json

EVALUATION = "evaluation.json"  # of the policy before the extension; renamed


def extend(folder: RunFolder, total_env_steps: Any) -> str:
    """Set the total of a locked run, and return a line that says what changed; empty if the total is the same."""
    config = folder.config()
    longer = config.replace(total_env_steps=convert(FIELDS["total_env_steps"], total_env_steps))
    before, after = config.num_rounds, longer.num_rounds
    if after < before:
        raise ConfigError(
            f"total_env_steps: expected at least {before * config.batch_size:,}, the total of {folder.path}, got "
            f"{longer.run.total_env_steps:,}; a run cannot be shortened"
        )
    check_config(folder)
    if after == before:
        return ""
    done = min(runfiles.newest_manifest(folder.checkpoints)[0], before)
    evaluation = folder.path / EVALUATION
    if evaluation.is_file():
        evaluation.rename(evaluation.with_name(f"evaluation-{done:08d}.json"))
    raw = folder.raw_config()
    history = [*raw.get("extended", []), {"rounds": done, "total_env_steps": config.run.total_env_steps}]
    write_json(folder.path / "config.json", {**raw, "total_env_steps": longer.run.total_env_steps, "extended": history})
    folder.set_status("stopped", rounds_done=done, rounds=after)
    steps = [f"{rounds * config.batch_size:,}" for rounds in (before, after)]
    return (
        f"extended from {steps[0]} to {steps[1]} steps, {done} of {after} rounds done; the schedules of the learning "
        "rate and of the gate now run over the new total"
    )
