"""Find the checkpoint to resume from, and recompute damaged or missing metrics before it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from nextpolicy import runfiles
from nextpolicy._version import __version__
from nextpolicy.loop.population import Program
from nextpolicy.loop.state import MemberState
from nextpolicy.run import checkpoint, metrics
from nextpolicy.run.block import finite_members, run_block
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.processes import agreed
from nextpolicy.runfiles import Damage, FileRecord
from nextpolicy.settings import short

if TYPE_CHECKING:
    from nextpolicy.run.job import Job

Say = Callable[[str], None]
First = Callable[[], MemberState]  # makes the state before the first round
Records = dict[str, FileRecord]


def starting_point(
    job: Job, program: Program, folder: RunFolder, say: Say, first: First, *, at_most: int, recompute: bool = False
) -> tuple[MemberState, int, Records]:
    """The state of the newest usable checkpoint, its round, and the records of the metrics parts before it.

    Starts at round 0, with the state `first()`, if there is no usable checkpoint. Damaged metrics parts are renamed.
    Damaged and missing metrics are recomputed from the nearest earlier checkpoint. If there is none, they are
    recomputed from round 0 only if `recompute` is true, because this takes as long as training.
    """
    state, rounds = _newest(job, program, folder, at_most, say, first)
    if jax.process_index() > 0:
        return state, rounds, {}
    checkpoint.prune_after(folder.checkpoints, rounds)
    recorded = _recorded(folder, rounds)
    for found in runfiles.damage(folder.metrics, rounds, recorded):
        if found.path is not None:
            aside = checkpoint.unused_name(found.path.with_suffix(".damaged"))
            found.path.rename(aside)
            say(f"{found}; renamed to {aside.name}")
    metrics.trim(folder.metrics, rounds)
    gaps = runfiles.damage(folder.metrics, rounds, recorded)
    saved = checkpoint.list_rounds(folder.checkpoints) if gaps else []
    usable = [r for r in saved if not checkpoint.fault(folder.checkpoints, r)]
    for gap in gaps:
        for piece in _split(gap, usable):
            _compute_again(job, program, folder, piece, usable, say, first if recompute or not piece.first else None)
    return state, rounds, _of_present_parts(folder, _recorded(folder, rounds))


def _newest(
    job: Job, program: Program, folder: RunFolder, at_most: int, say: Say, first: First
) -> tuple[MemberState, int]:
    """The state and round of the newest checkpoint that is intact and finite, or an initial state and 0."""
    fresh = program.init(job.seeds)
    while rounds := agreed(_newest_whole(folder, at_most, say) if jax.process_index() == 0 else 0):
        state = checkpoint.restore(folder.checkpoints, rounds, checkpoint.placed_like(fresh))
        if np.all(finite_members(state)):
            _compare_devices(job, folder, rounds, say)
            if job.on_host and rounds < job.config.num_rounds:
                say(f"{job.setup.spec.id} cannot save its state: episodes restart, training resumes at round {rounds}")
            return state, rounds
        say(f"checkpoint {rounds} contains values that are not finite; falling back to an earlier one")
        if jax.process_index() == 0:
            checkpoint.set_aside(folder.checkpoints, rounds)
    return first(), 0


def _compare_devices(job: Job, folder: RunFolder, rounds: int, say: Say) -> None:
    """Say so if training resumes on other devices than before. Manifests of earlier versions do not name them."""
    if jax.process_index() == 0 and rounds < job.config.num_rounds:
        before, now = checkpoint.manifest(folder.checkpoints, rounds).get("trained_on"), job.trained_on()
        if isinstance(before, str) and before != now:
            say(f"checkpoint {rounds} was trained on {short(before)}, training resumes on {now}: last bits may differ")


def _newest_whole(folder: RunFolder, at_most: int, say: Say) -> int:
    """Rounds of the newest intact checkpoint; 0 if there is none. Damaged checkpoints are renamed."""
    check_config(folder)
    check_state(folder)
    there = checkpoint.list_rounds(folder.checkpoints)
    rounds = checkpoint.newest_whole(folder.checkpoints, at_most, say) or 0
    damaged = [r for r in there if r > rounds and checkpoint.fault(folder.checkpoints, r)]
    if not rounds and (there or _has_trained(folder)):
        _check_fresh_start(folder, at_most, sorted(set(there) - set(damaged)))
        aside = checkpoint.unused_name(folder.path / "metrics.old")
        folder.metrics.rename(aside)
        folder.metrics.mkdir()
        damaged += checkpoint.without_manifest(folder.checkpoints)
        say(f"no intact checkpoint is left; restarting from round 0, earlier metrics are kept in {aside.name}")
    for each in damaged:
        checkpoint.set_aside(folder.checkpoints, each)
    return rounds


def _has_trained(folder: RunFolder) -> bool:
    """Whether there has been a checkpoint. Metrics of one block alone are those of a run killed before its first."""
    done = folder.status().get("rounds_done")
    return (isinstance(done, int) and done > 0) or len(runfiles.parts(folder.metrics)) > 1


def _check_fresh_start(folder: RunFolder, at_most: int, whole: list[int]) -> None:
    """Raise if the run is finished, or has an intact checkpoint after its last round."""
    if folder.status().get("state") == "finished":
        raise RunError(
            f"run: {folder.path} is finished but has no intact checkpoint, so nothing can be recomputed; "
            "train again with another --out"
        )
    if whole and at_most == folder.config().num_rounds:
        raise RunError(
            f"run: {folder.path} has a checkpoint of round {whole[-1]}, but config.json asks for {at_most} rounds; "
            "restore its total_env_steps"
        )


def check_config(folder: RunFolder) -> None:
    """Raise if config.json differs from the configuration of the newest checkpoint."""
    changed = runfiles.changed_setting(folder.raw_config(), runfiles.newest_manifest(folder.checkpoints)[1])
    if changed:
        raise RunError(f"run: {folder.path} was changed: {changed}; restore it, or train a new run with another --out")


def check_state(folder: RunFolder) -> None:
    """Raise if the newest intact checkpoint has the state format of another version."""
    saved = reversed(checkpoint.list_rounds(folder.checkpoints))
    newest = next((r for r in saved if not checkpoint.fault(folder.checkpoints, r)), None)
    if newest is None:
        return
    if checkpoint.manifest(folder.checkpoints, newest).get("state_format", 1) != checkpoint.STATE_FORMAT:
        wrote = folder.raw_config().get("about", {}).get("nextpolicy", "an unknown version")
        raise RunError(
            f"run: {folder.path} was written by nextpolicy {wrote}, whose checkpoints {__version__} cannot read; "
            f"install nextpolicy {wrote} to resume or evaluate it; metrics and reports work with this version"
        )


def _split(gap: Damage, checkpoints: list[int]) -> list[Damage]:
    """Split the gap at the checkpoints inside it, so that all pieces but the first start at a checkpoint."""
    edges = [gap.first, *(r for r in checkpoints if gap.first < r <= gap.last), gap.last + 1]
    return [gap._replace(first=first, last=end - 1) for first, end in itertools.pairwise(edges)]


def _compute_again(
    job: Job, program: Program, folder: RunFolder, gap: Damage, usable: list[int], say: Say, first: First | None
) -> None:
    """Recompute the metrics of the gap from the nearest `usable` checkpoint before it, or from `first()`, if given."""
    if job.on_host or jax.process_count() > 1:
        why = "several processes" if not job.on_host else f"{job.setup.spec.id}, which cannot save its state"
        say(f"{gap}; they cannot be recomputed with {why}")
        return
    start = max((r for r in usable if r <= gap.first), default=0)
    extended = max((rounds for rounds, _ in runfiles.extensions(folder.raw_config())), default=0)
    if start < extended:  # earlier rounds had other schedules
        say(f"{gap}; they cannot be recomputed: the run was extended after round {extended}, and no checkpoint is left")
        return
    if not start and first is None:
        command = f"`nextpolicy resume {shlex.quote(str(folder.path))} --recompute-metrics`"
        say(f"{gap}; there is no earlier checkpoint; {command} recomputes them from round 0")
        return
    say(f"{gap}; recomputing them from round {start}")
    state = first() if first is not None and not start else program.init(job.seeds)
    if start:
        state = checkpoint.restore(folder.checkpoints, start, checkpoint.placed_like(state))
    while start <= gap.last:
        edge = gap.first if start < gap.first else gap.last + 1
        state, block = run_block(program, state, start, min(program.capacity, edge - start))
        if start >= gap.first:
            checkpoint.update_records(folder.checkpoints, metrics.write_part(folder.metrics, block.frame(job)))
        start += block.rounds


def _recorded(folder: RunFolder, rounds: int) -> Records:
    return runfiles.recorded_parts(checkpoint.manifest(folder.checkpoints, rounds)) if rounds else {}


def _of_present_parts(folder: RunFolder, recorded: Records) -> Records:
    """Records of the parts on disk. Older versions did not record them, so missing records are computed."""
    paths = [path for _, _, path in runfiles.parts(folder.metrics)]
    return {path.name: recorded.get(path.name) or runfiles.record_file(path) for path in paths}
