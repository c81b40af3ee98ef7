"""Compares contenders on the same work. They take turns with compiled programs; compile time is reported separately."""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from nextpolicy.bench import brax_peer, contenders, peers, process
from nextpolicy.bench.contenders import Contender
from nextpolicy.bench.measure import lengths, measure, table, until_return, until_table
from nextpolicy.bench.work import Work
from nextpolicy.config import ConfigError, presets
from nextpolicy.run.folder import describe_machine
from nextpolicy.runfiles import write_json

OWN = ("ppo", "sv-static", "sv-dynamic", "all", "simulator")
ELSEWHERE = tuple(process.PACKAGES)  # peers that run in another Python interpreter
PEERS = ("purejaxrl", "brax", *ELSEWHERE)


@dataclass(frozen=True)
class Options:
    """Options of the measurement, and paths of other libraries.

    seconds          intended length of one measurement
    repeats          turns of each contender
    compile_threads  if above 1, all works compile in parallel first; if 1, each compiles just before its measurement
    until_return     if given, also measure the time until the mean episode return of a round reaches this
    purejaxrl        path of a PureJaxRL checkout
    pythons          Python interpreters of peers by name
    """

    seconds: float = 3.0
    repeats: int = 3
    compile_threads: int = 1
    until_return: float | None = None
    purejaxrl: str | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)


def compare(works: Sequence[Work], names: Sequence[str], options: Options, out: Path | None = None) -> None:
    """Measure the contenders on every work and print tables. All numbers are written to `out` as JSON."""
    for work in works:
        for name in names:
            check(name, work, options)
    kept: dict[str, Any] = {"rows": [], "until_return": [], "failed": [], "about": describe_machine()}
    with _shared_programs():
        for work, made, rounds in _prepared(works, names, options, kept["failed"]):
            _measure_one(work, made, rounds, options, kept)
            if out is not None:
                write_json(out, kept)
    if kept["failed"]:
        raise RuntimeError(f"{len(kept['failed'])} of {len(works)} works failed: {'; '.join(kept['failed'])}")


def check(name: str, work: Work, options: Options) -> None:
    """Raise if a contender does not support the work, before compilation."""
    presets.build(work.env, **work.fields)
    if name == "purejaxrl":
        peers.check_purejaxrl(options.purejaxrl, work.env, work.fields)
    elif name == "brax":
        brax_peer.check(work.env)
    elif name in ELSEWHERE:
        process.check(name, work.env, options.pythons)
    elif name == "all" and work.members % 3:
        raise ConfigError(f"all: expected a multiple of 3 members, a third for each algorithm, got {work.members}")


def make(name: str, work: Work, options: Options) -> Contender:
    """The contender `name` for this work, compiled."""
    where = (work.env, work.members, work.fields)
    if name == "simulator":
        return contenders.simulator(*where)
    if name == "purejaxrl":
        assert options.purejaxrl is not None  # ensured by `check`
        return peers.purejaxrl(options.purejaxrl, *where)
    if name == "brax":
        return brax_peer.brax(*where)
    if name in ELSEWHERE:
        return process.contender(name, options.pythons[name], *where)
    return contenders.ours(work.env, "ppo,sv-static,sv-dynamic" if name == "all" else name, work.members, work.fields)


Prepared = tuple[Work, list[Contender], dict[str, int]]


def _prepared(works: Sequence[Work], names: Sequence[str], options: Options, failed: list[str]) -> Iterator[Prepared]:
    """Yields works ready for measurement. With several threads, all works compile before the first is measured."""

    def prepare(work: Work) -> tuple[list[Contender], dict[str, int]]:
        made: list[Contender] = []
        try:
            made += [make(name, work, options) for name in names]
            return made, lengths(made, options.seconds)
        except Exception:
            _close(made)
            raise

    with ThreadPoolExecutor(options.compile_threads) as pool:
        at_once = options.compile_threads > 1
        futures = [pool.submit(prepare, work) for work in works] if at_once else []
        for future in futures:
            future.exception()  # waits, since no work must compile while another is measured
        for i, work in enumerate(works):
            try:
                made, rounds = futures[i].result() if at_once else prepare(work)
            except (ValueError, RuntimeError, OSError, ImportError) as error:
                if len(works) == 1:
                    raise
                failed.append(f"{work.title}: {str(error).splitlines()[0]}")
                print(f"nextpolicy: {failed[-1]}", file=sys.stderr, flush=True)
                continue
            if at_once:
                futures[i] = None  # type: ignore[call-overload]  # frees its programs
            yield work, made, rounds


def _measure_one(
    work: Work, made: list[Contender], rounds: dict[str, int], options: Options, kept: dict[str, Any]
) -> None:
    """Measure one work, print its numbers, add them to `kept`, and free its programs."""
    about = {"env": work.env, "num_envs": presets.build(work.env, **work.fields).environment.num_envs}
    try:
        rows = measure(made, work.members, rounds, options.repeats)
        print(f"{work.title}\n{table(rows)}", flush=True)
        kept["rows"] += [{**about, "fields": work.fields, **row} for row in rows]
        if options.until_return is not None:
            reached = until_return(made, work.members, options.until_return)
            print(until_table(reached), flush=True)
            kept["until_return"] += [{**about, "fields": work.fields, **row} for row in reached]
    finally:
        _close(made)
        gc.collect()


def _close(made: list[Contender]) -> None:
    for contender in made:
        contender.close()
    made.clear()


@contextlib.contextmanager
def _shared_programs() -> Iterator[None]:
    """Compile each program once, since static and dynamic SV-PPO share one program.

    Compiled programs are cached in a temporary folder, so that the first contender still has a compile time. If the
    user has set a cache folder, that one is used.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.config.update("jax_compilation_cache_dir", folder)
            compilation_cache.reset_cache()  # JAX reads the setting only once
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()
