"""Small suites for hours, killed at random moments: `python -m tests.faults.soak --minutes 120 --out soak.json`.

Two things in turns:

- a suite in a process of its own that is killed (SIGKILL) at random moments and continued until it is finished.
  Its tables must be those of a suite left alone, to the bit.
- the same suite, its report and an evaluation in *this* process, which records its memory, open files, threads and
  child processes afterwards. They must not grow.

The last line says whether all was equal and flat; the exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

SUITE = """name = "soak"
environments = ["probe/action-observation", "probe/action-continuous"]
algo = ["ppo", "sv-dynamic"]
preset = "default"
seeds = 2
evaluate_episodes = 4

[fields]
total_env_steps = 6144
num_envs = 8
rollout_length = 32
minibatch_size = 128
hidden = [8]
block_rounds = 4
"""
GROWTH = {"memory_mb": 60.0, "files": 4, "threads": 4, "children": 0}  # allowed from a third of the time to the end


def command(suite: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "nextpolicy", "suite", "run", str(suite), "--out", str(out), "--quiet"]


def killed_until_finished(suite: Path, out: Path, rng: np.random.Generator, latest: float) -> int:
    """Run the suite to its end and kill it at random moments, `latest` seconds after a start; the number of kills."""
    kills = 0
    while True:
        patience = float(rng.uniform(0.05, 1.0)) * latest if rng.uniform() < 0.75 else 600.0
        process = subprocess.Popen(command(suite, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if process.wait(patience) == 0:
                return kills
            raise RuntimeError(f"the suite ended with exit code {process.returncode} after {kills} kills")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1


def tables_of(out: Path) -> dict[str, str]:
    """What the report computes of a suite, as text."""
    from nextpolicy.report import write
    from nextpolicy.report.comparable import load_all
    from nextpolicy.report.tables import compare

    return write._tables(compare(load_all([str(out)])))


def in_process(suite: Path, out: Path) -> None:
    """The suite, its report and an evaluation in this process."""
    import nextpolicy
    from nextpolicy.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for words in (command(suite, out)[3:], ["report", str(out), "--out", str(out / "page.html")]):
            if main(words) not in (0, None):
                raise RuntimeError(f"nextpolicy {' '.join(words)} failed in this process")
    nextpolicy.load(next(file.parent for file in sorted(out.glob("*/config.json")))).evaluate(4, num_envs=4)


def resources() -> dict[str, float]:
    """Of this process, without memory that is free and that the C library keeps (150 MB after a compilation)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "memory_mb": resident / 1024,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children),
    }


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """The last sample less that after a third of the time: until then caches fill."""
    first, last = samples[len(samples) // 3], samples[-1]
    return {name: last[name] - first[name] for name in GROWTH}


def soak(minutes: float, seed: int, out: Path) -> dict[str, Any]:
    """Run for so long; what was seen is written after each turn."""
    rng, until = np.random.default_rng(seed), time.monotonic() + 60 * minutes
    found: dict[str, Any] = {"suites": 0, "kills": 0, "different": 0, "samples": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        suite = root / "soak.toml"
        suite.write_text(SUITE)
        subprocess.run(command(suite, root / "compiles"), check=True, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        subprocess.run(command(suite, root / "alone"), check=True, stdout=subprocess.DEVNULL)
        alone, expected = time.monotonic() - begin, tables_of(root / "alone")
        while time.monotonic() < until:
            for name in ("killed", "here"):
                place = root / name
                if name == "killed":
                    found["kills"] += killed_until_finished(suite, place, rng, 0.7 * alone)
                else:
                    in_process(suite, place)
                found["suites"] += 1
                found["different"] += tables_of(place) != expected
                shutil.rmtree(place)
            found["samples"].append(resources())
            found["growth"] = growth(found["samples"])
            found["minutes"] = round(minutes - (until - time.monotonic()) / 60, 1)
            out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = soak(options.minutes, options.seed, options.out)
    grown = [name for name, allowed in GROWTH.items() if found["growth"][name] > allowed]
    print(f"{found['suites']} suites, {found['kills']} kills in {found['minutes']} minutes; growth {found['growth']}")
    print(f"different results: {found['different']}; grew: {', '.join(grown) or 'nothing'}")
    return int(bool(found["different"] or grown))


if __name__ == "__main__":
    sys.exit(main())
