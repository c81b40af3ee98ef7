"""Inject the whole catalogue of faults and print what came of each kind: `python -m tests.faults.count [WORK ...]`.

The whole catalogue may take an hour; `--every 12` injects every twelfth interruption only. Exit code 1 if a run was
lost or a result changed silently. Words select the kinds of work by name.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.compiling import FLAGS

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", FLAGS)  # as in the processes that are killed

import jax

from . import damage, environments, interruptions, processes
from .outcomes import Result, complaint, table
from .works import WORKS, programs_kept

FLIPS = 8  # of each file that is damaged


def catalogue(root: Path, every: int, chosen: list[str]) -> Iterator[Result]:
    """All faults, or those of the chosen kinds of work."""
    for number, work in enumerate(WORKS):
        if chosen and work.name not in chosen:
            continue
        whole = interruptions.undisturbed(work, root / f"work-{number}")
        moments = range(0, len(whole.changes), every)
        for inject in (interruptions.kills, interruptions.errors, interruptions.full_disks):
            yield from inject(whole, moments)
        yield from processes.kills(whole, root / f"work-{number}")
    for number, victim in enumerate(damage.VICTIMS):
        if not chosen or f"damage to {victim.name}" in chosen:
            yield from damage.damages(victim, root / f"victim-{number}", FLIPS)
    if not chosen or "environments" in chosen:
        yield from environments.faults(root / "environments")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.count")
    parser.add_argument("works", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_disable_most_optimizations", True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, programs_kept():
        for result in catalogue(Path(folder), options.every, options.works):
            results.append(result)
            if result.bad:
                print(complaint([result]), file=sys.stderr, flush=True)
    print(table(results))
    return int(any(result.bad for result in results))


if __name__ == "__main__":
    sys.exit(main())
