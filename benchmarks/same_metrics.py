"""Tests whether two revisions train equally bit for bit: compares all metrics of all rounds on one CPU device.

    python benchmarks/same_metrics.py CHECKOUT [--rounds 20] [--only ENV]

CHECKOUT is another working copy (`git worktree add`). Both revisions run in this Python, one process each, on the
environments in WORK with PPO, static SV-PPO and dynamic SV-PPO, two seeds each. Prints a line per environment and exits
with 1 if any number differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

# Changes of the presets: fewer environments if a CPU would take minutes.
WORK = {
    "gymnax/CartPole-v1": {},
    "gymnax/Pendulum-v1": {},
    "gymnax/Breakout-MinAtar": {"num_envs": 16, "minibatch_size": 256},
    "four-rooms": {},
    "gym/CartPole-v1": {},
}
TRAIN = """
import sys
import nextpolicy
try:
    from nextpolicy.config import presets
except ImportError:  # before configurations were a package
    from nextpolicy import presets

env, rounds, out, fields = sys.argv[1], int(sys.argv[2]), sys.argv[3], eval(sys.argv[4])
batch = presets.build(env, **fields).batch_size
algo = ("ppo", "sv-static", "sv-dynamic")
nextpolicy.train(env, algo=algo, seeds=2, total_env_steps=rounds * batch, out=out, quiet=True, devices=1, **fields)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", action="append", choices=list(WORK))
    options = parser.parse_args()
    if not (options.checkout / "src" / "nextpolicy").is_dir():
        parser.error(f"checkout: expected a working copy with src/nextpolicy, got {options.checkout}")
    sides = {"here": Path(__file__).parents[1], "there": options.checkout.resolve()}
    differs = False
    for env in options.only or WORK:
        with tempfile.TemporaryDirectory() as folder:
            here, there = (metrics(root, env, options.rounds, Path(folder) / name) for name, root in sides.items())
        report = compare(here, there)
        differs |= not report.startswith("equal")
        print(f"{env}: {report}", flush=True)
    sys.exit(int(differs))


def metrics(root: Path, env: str, rounds: int, out: Path) -> pd.DataFrame:
    """The metrics of a run with the code in `root`."""
    one = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    settings = {**os.environ, **one, "PYTHONPATH": str(root / "src"), "NEXTPOLICY_KEEP_TRACED": "0"}
    subprocess.run([sys.executable, "-c", TRAIN, env, str(rounds), str(out), repr(WORK[env])], env=settings, check=True)
    parts = [pd.read_parquet(path) for path in sorted((out / "metrics").glob("part-*.parquet"))]
    return pd.concat(parts).sort_values(["member", "round"], ignore_index=True).drop(columns="steps_per_second")


def compare(here: pd.DataFrame, there: pd.DataFrame) -> str:
    """`equal, N numbers`, or a description of the first difference."""
    shared = [name for name in there if name in here]
    if here.shape[0] != there.shape[0] or len(shared) < there.shape[1]:
        return f"differs: {here.shape[0]} rows against {there.shape[0]}, columns {set(there) - set(here)} are missing"
    for name in shared:
        if not here[name].equals(there[name]):
            gap = (here[name] - there[name]).abs().max() if here[name].dtype.kind in "fiu" else "text"
            first = here["round"][~(here[name].eq(there[name]) | here[name].isna())].min()
            return f"differs: {name} by at most {gap} from round {first} on"
    return f"equal, {len(shared) * len(here)} numbers"


if __name__ == "__main__":
    main()
