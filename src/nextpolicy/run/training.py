"""The training loop on the host: run blocks of rounds and save metrics and a checkpoint after each."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from nextpolicy.config import TrainConfig
from nextpolicy.envs.registry import module_of
from nextpolicy.loop.population import Program
from nextpolicy.loop.state import MemberState
from nextpolicy.run import checkpoint, interrupt, metrics, progress, sinks
from nextpolicy.run.block import Block, TrainingError, check_finite, run_block
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job
from nextpolicy.run.processes import agreed
from nextpolicy.run.restart import starting_point
from nextpolicy.run.warm_start import first_state
from nextpolicy.runfiles import FileRecord
from nextpolicy.types import PyTree

BLOCK_SECONDS = 4.0  # intended duration of a block if block_rounds is 0
SAVING_SHARE = 0.1  # fraction of time spent on saving above which blocks become longer than that
MOST_SECONDS = 60.0  # but not longer than this, which a killed run may lose

_LESS_MEMORY = "use fewer seeds or num_envs, a shorter rollout_length or a smaller minibatch_size"
OnBlock = Callable[[int, dict[str, np.ndarray], PyTree], None]


def run_job(
    job: Job,
    folder: RunFolder,
    *,
    resume: bool = False,
    quiet: bool = False,
    on_block: OnBlock | None = None,
    on_resume: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    longest: Callable[[int], int] | None = None,
    at_most: int | None = None,
    recompute_metrics: bool = False,
) -> None:
    """Train to the end, from round 0 or from the newest intact checkpoint, and record the status in the folder.

    `stop` is called after every saved block; if it returns True, training stops and can be resumed later.
    `on_resume(done)` is called before a resumed run goes on. `longest(done)` is the greatest length of the next block.
    A resumed run uses no checkpoint after round `at_most`.
    """
    how_to_continue = _how_to_continue(job, folder, recompute_metrics)
    try:
        with interrupt.raised(how_to_continue):
            _train(job, folder, resume, quiet, on_block, on_resume, stop, longest, at_most, recompute_metrics)
    except KeyboardInterrupt as pressed:
        saved = _saved(folder)
        _status(folder, "stopped", saved, job.config)
        signum = pressed.signum if isinstance(pressed, interrupt.Stopped) else signal.SIGINT
        where = f"training stopped at round {saved} of {job.config.num_rounds}"
        raise interrupt.Stopped(f"{where}; {how_to_continue}", signum) from None
    except Exception as error:
        if isinstance(error, RunError) and not isinstance(error, checkpoint.CheckpointError):
            raise  # the folder cannot be used; its status stays
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if "RESOURCE_EXHAUSTED" in reason:
            reason = f"the device ran out of memory ({reason[:200]}); {_LESS_MEMORY}"
        _status(folder, "failed", _saved(folder), job.config, reason=reason)
        if "RESOURCE_EXHAUSTED" in reason:
            raise TrainingError(reason) from error
        if isinstance(error, OSError | checkpoint.CheckpointError):
            raise TrainingError(f"{reason}; once that is fixed, {how_to_continue}") from error
        raise


def _how_to_continue(job: Job, folder: RunFolder, recompute_metrics: bool) -> str:
    """The command that resumes the run, or the Python call if objects must be passed again."""
    own = folder.raw_config().get("custom", []) if jax.process_index() == 0 else []
    if own:
        again = "".join(f", {name}=..." for name in own)
        return f"`nextpolicy.resume({str(folder.path)!r}{again})` continues it"
    module = module_of(job.config.environment.env)
    trust = f" --trust-module {shlex.quote(module)}" if module else ""
    recompute = " --recompute-metrics" if recompute_metrics else ""
    return f"`nextpolicy resume {shlex.quote(str(folder.path))}{trust}{recompute}` continues it"


def _train(
    job: Job,
    folder: RunFolder,
    resume: bool,
    quiet: bool,
    on_block: OnBlock | None,
    on_resume: Callable[[int], None] | None,
    stop: Callable[[], bool] | None,
    longest: Callable[[int], int] | None,
    at_most: int | None,
    recompute_metrics: bool,
) -> None:
    config = job.config
    with contextlib.ExitStack() as stack:
        outlets = sinks.make(config, folder.path) if jax.process_index() == 0 else []
        for sink in outlets:
            stack.callback(sink.close)
        bar = progress.make(config.num_rounds, config.environment.env, quiet or jax.process_index() > 0)
        stack.callback(bar.close)
        program = job.program()
        stack.callback(program.close)
        done = 0
        algos = [member.algo for member in config.members()]
        records: dict[str, FileRecord] = {}
        if resume:
            latest = config.num_rounds if at_most is None else at_most
            first = partial(first_state, job, program, folder)
            where = starting_point(job, program, folder, bar.say, first, at_most=latest, recompute=recompute_metrics)
            state, done, records = where
        else:
            state = first_state(job, program, folder)
        _status(folder, "running", done, config)
        if on_resume is not None and done:
            on_resume(done)
        for block in _blocks(job, program, state, done, folder, records, longest):
            interrupt.check()
            done = block.first + block.rounds
            if on_block is not None:
                on_block(block.first, block.metrics, block.observed)
            if outlets:
                frame = block.frame(job)
                for sink in outlets:
                    sink.write(frame)
            _status(folder, "running", done, config)
            speed = progress.Speed(block.steps_per_second(job), block.rounds / block.seconds)
            bar.update(done, progress.standings(block.metrics, algos), speed)
            if stop is not None and done < config.num_rounds and agreed(stop()):
                break
        _status(folder, "finished" if done == config.num_rounds else "stopped", done, config)


def _blocks(
    job: Job,
    program: Program,
    state: MemberState,
    done: int,
    folder: RunFolder,
    records: dict[str, FileRecord],
    longest: Callable[[int], int] | None,
) -> Iterator[Block]:
    """Yield each block after its metrics and its checkpoint are on disk."""
    config = job.config
    settings = folder.raw_config() if jax.process_index() == 0 else {}
    length = min(config.run.block_rounds, program.capacity) or 1
    warm = False
    while done < config.num_rounds:
        most = min(length, config.num_rounds - done)
        state, block = run_block(program, state, done, most if longest is None else min(most, longest(done)))
        check_finite(job, state, block, _saved(folder))
        started = time.perf_counter()
        if jax.process_index() == 0:
            records.update(metrics.write_part(folder.metrics, block.frame(job)))
        done += block.rounds
        about = {"config": settings, "metrics": records, "trained_on": job.trained_on()}
        checkpoint.save(folder.checkpoints, done, state, config.run.keep_checkpoints, about)
        saving = time.perf_counter() - started
        yield block
        if warm and not config.run.block_rounds:  # the first block includes compilation
            aim = max(BLOCK_SECONDS, min(MOST_SECONDS, saving / SAVING_SHARE))
            length = agreed(max(1, round(aim * block.rounds / block.seconds)))
        warm = True


def _saved(folder: RunFolder) -> int:
    return max(checkpoint.list_rounds(folder.checkpoints), default=0)


def _status(folder: RunFolder, state: str, done: int, config: TrainConfig, **facts: Any) -> None:
    if jax.process_index() == 0:
        folder.set_status(
            state, rounds_done=done, rounds=config.num_rounds, env_steps=done * config.batch_size, **facts
        )
