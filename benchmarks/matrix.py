"""Compares PPO of nextpolicy with that of PureJaxRL on many configurations on one machine, in minutes.

    python benchmarks/matrix.py --purejaxrl CHECKOUT --out matrix.json brax/hopper:12 gymnax/Breakout-MinAtar:16

Compilation takes far longer than measurement, so each configuration has its own process and all compile in parallel.
Then the processes measure one after another; within a process, contenders take turns. Work is
ENV[@BACKEND]:MEMBERS[:CONTENDER,CONTENDER...][:FIELD=VALUE...]. On gymnax environments, both use PureJaxRL's network,
an MLP with layers of 64 and 64, unless fields describe another, and no normalisation. `beside_compiling` marks rows
measured while others were still compiling.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAME_WORK = {"torso": "mlp", "hidden": "64,64", "activation": "tanh", "layer_norm": "false"}
SAME_WORK |= {"normalise_obs": "false", "normalise_reward": "false"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="+", help="ENV[@BACKEND]:MEMBERS[:CONTENDERS][:FIELD=VALUE...]")
    parser.add_argument("--purejaxrl", required=True)
    parser.add_argument("--out", required=True, help="JSON file; must not exist")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wait", type=float, default=400.0, help="maximum seconds to wait for compilation")
    parser.add_argument("--turns", help=argparse.SUPPRESS)  # shared folder of the workers
    options = parser.parse_args()
    if options.turns is not None:
        work(options, options.work[0])
        return
    try:
        for description in options.work:
            check(options, description)
        Path(options.out).touch(exist_ok=False)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    failed = conduct(options)
    if not Path(options.out).read_text():
        Path(options.out).unlink()  # nothing was measured, so that the file does not block the next run
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


def read(description: str) -> tuple[str, str, int, list[str], dict[str, Any]]:
    """A work's environment, backend, members, contenders and config fields."""
    env, _, rest = description.partition(":")
    count, *more = rest.split(":")
    names = [part for part in more if "=" not in part]
    if not count.isdigit() or not int(count) or names != more[: min(len(names), 1)]:
        form = "ENV[@BACKEND]:MEMBERS[:CONTENDER,CONTENDER...][:FIELD=VALUE...]"
        raise ValueError(f"work: expected {form}, got {description}")
    env, _, backend = env.partition("@")
    fields: dict[str, Any] = dict(SAME_WORK) if env.startswith("gymnax/") else {}
    fields |= {"env_options": {"backend": backend}} if backend else {}
    fields |= dict(pair.split("=", 1) for pair in more[len(names) :])
    return env, backend, int(count), names[0].split(",") if names else ["ppo", "purejaxrl"], fields


def check(options: argparse.Namespace, description: str) -> None:
    """Raise if a contender does not support the work."""
    from nextpolicy.bench import comparison
    from nextpolicy.bench.work import Work

    env, _, members, names, fields = read(description)
    for name in names:
        if name not in (*comparison.OWN, "purejaxrl"):
            known = ", ".join((*comparison.OWN, "purejaxrl"))
            raise ValueError(f"work: expected contenders among {known}, got {description}")
        comparison.check(name, Work(env, members, fields), comparison.Options(purejaxrl=options.purejaxrl))


def conduct(options: argparse.Namespace) -> list[str]:
    """Start a process per work, wait for compilation, and let them measure in turn. Returns the works that failed."""
    with tempfile.TemporaryDirectory() as turns:
        base = [sys.executable, __file__, "--purejaxrl", options.purejaxrl, "--turns", turns, "--out", options.out]
        base += ["--seconds", str(options.seconds), "--repeats", str(options.repeats)]
        quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
        started, ready = time.monotonic(), 0
        workers = [subprocess.Popen([*base, w], env=quiet) for w in options.work]
        while time.monotonic() < started + options.wait:
            ready = len(list(Path(turns).glob("ready-*")))
            if ready + sum(w.poll() not in (None, 0) for w in workers) == len(workers):
                break
            time.sleep(0.5)
        print(f"{ready} of {len(workers)} compiled after {time.monotonic() - started:.0f} s", flush=True)
        (Path(turns) / "go").touch()
        return [w for w, worker in zip(options.work, workers, strict=True) if worker.wait()]


def work(options: argparse.Namespace, description: str) -> None:
    """Compile the contenders, wait for the turn, measure, and append the rows to the results."""
    turns = Path(options.turns)
    compiling = turns / f"compiling-{os.getpid()}"
    compiling.touch()
    try:
        made, rounds = compiled(options, description)
        (turns / f"ready-{os.getpid()}").touch()
    finally:
        compiling.unlink()
    from nextpolicy.bench.measure import measure, table
    from nextpolicy.run.folder import describe_machine

    env, backend, members, _, fields = read(description)
    while not (turns / "go").exists():
        time.sleep(0.2)
    with (turns / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        beside = any(turns.glob("compiling-*"))
        rows = measure(made, members, rounds, options.repeats)
        print(f"{env}{' (others were still compiling)' if beside else ''}\n{table(rows)}", flush=True)
        known = {"env": env, "backend": backend, "fields": fields, "beside_compiling": beside}
        known |= {"about": describe_machine()}
        file = Path(options.out)
        before = json.loads(file.read_text() or "[]")
        file.write_text(json.dumps([*before, *({**known, **row} for row in rows)], indent=1))


def compiled(options: argparse.Namespace, description: str) -> tuple[list[Any], dict[str, int]]:
    """The compiled contenders, and the number of rounds of each per turn."""
    from nextpolicy.bench.comparison import Options, make
    from nextpolicy.bench.measure import lengths
    from nextpolicy.bench.work import Work

    env, _, members, names, fields = read(description)
    settings = Options(purejaxrl=options.purejaxrl)
    made = [make(name, Work(env, members, fields), settings) for name in names]
    return made, lengths(made, options.seconds)


if __name__ == "__main__":
    main()
