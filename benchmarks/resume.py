"""Tests whether a killed and resumed run equals an uninterrupted run bit for bit on this machine.

    python benchmarks/resume.py brax/hopper --out FOLDER --seeds 12 --total-env-steps 2e6

Further options are those of `nextpolicy train`. FOLDER gets three runs: an uninterrupted run; a run that is killed
(SIGKILL) after a checkpoint and resumed by another process; and an uninterrupted run without compilation cache, which
shows whether recompilation changes the numbers, since autotuning may choose other kernels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "nextpolicy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs; must not exist")
    options, fields = parser.parse_known_args()
    if options.out.exists():
        parser.error(f"out: expected a new folder, got {options.out}, which exists; nothing was written")
    train = [*COMMAND, "train", options.env, *fields, "--quiet", "--out"]
    whole, killed, anew = (str(options.out / name) for name in ("whole", "killed", "anew"))
    if subprocess.run([*train, whole], check=False).returncode:
        sys.exit("the first run failed; see its error above")
    kill_after_a_checkpoint([*train, killed], Path(killed))
    subprocess.run([*COMMAND, "resume", killed, "--quiet"], check=True)
    with tempfile.TemporaryDirectory() as nothing:
        subprocess.run([*train, anew], check=True, env={**os.environ, "JAX_COMPILATION_CACHE_DIR": nothing})
    print(f"killed and resumed: {compare(whole, killed)}")
    print(f"recompiled:         {compare(whole, anew)}")


def kill_after_a_checkpoint(command: list[str], folder: Path) -> None:
    """Start the run, wait for a complete checkpoint, and kill the run."""
    import nextpolicy

    process = subprocess.Popen(command)
    while not any((folder / "checkpoints").glob("*.json")):
        if process.poll() is not None:
            sys.exit("the run ended before its first checkpoint; increase --total-env-steps")
        time.sleep(0.01)
    process.kill()
    process.wait()
    status = nextpolicy.load(folder).status
    print(f"killed after {status['rounds_done']} of {status['rounds']} rounds, state {status['state']!r}")


def compare(a: str, b: str) -> str:
    """The differences between two runs in metrics (except speed) and agents."""
    import jax
    import numpy as np

    import nextpolicy

    first, second = nextpolicy.load(a), nextpolicy.load(b)
    bits = lambda x: np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)  # noqa: E731
    leaves = [list(map(bits, jax.tree.leaves(run._agents))) for run in (first, second)]
    same = sum(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(*leaves, strict=True))
    ours, theirs = (r.metrics.drop(columns="steps_per_second") for r in (first, second))
    differ = (ours.ne(theirs) & ~(ours.isna() & theirs.isna())).any(axis=1)
    where = f"metrics differ from round {ours['round'][differ].min()} on" if differ.any() else "all metrics equal"
    return f"{same} of {len(leaves[0])} arrays of the agents equal, {where} ({len(ours)} rows)"


if __name__ == "__main__":
    main()
