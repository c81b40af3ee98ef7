"""Our PPO against PureJaxRL's on many configurations of one machine, in minutes.

    python benchmarks/matrix.py --purejaxrl CHECKOUT --out matrix.json brax/hopper:12 gymnax/Breakout-MinAtar:16

Compiling takes far longer than measuring, so each configuration is a process of its own and all of them compile at the
same time; then they measure one after another, both contenders in turns in one process, while the others wait. Work is
ENV[@BACKEND]:MEMBERS[:CONTENDER,CONTENDER...]; gymnax environments use PureJaxRL's network, an MLP of 64 and 64.
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

SAME_NETWORK = {"torso": "mlp", "hidden": "64,64", "activation": "tanh", "layer_norm": "false"}
SHORT_START = {"warmup_steps": 10}  # one round of warm-up and not a hundred: the program is the same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="+", help="ENV[@BACKEND]:MEMBERS[:CONTENDERS]")
    parser.add_argument("--purejaxrl", required=True)
    parser.add_argument("--out", required=True, help="JSON file; must not exist")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wait", type=float, default=400.0, help="seconds after which measuring starts regardless")
    parser.add_argument("--turns", help=argparse.SUPPRESS)  # a worker's folder
    options = parser.parse_args()
    if options.turns is None:
        conduct(options)
    else:
        work(options, options.work[0])


def conduct(options: argparse.Namespace) -> None:
    """Start a process for each work, wait until all have compiled, and let them measure one by one."""
    results = Path(options.out)
    results.touch(exist_ok=False)
    with tempfile.TemporaryDirectory() as turns:
        base = [sys.executable, __file__, "--purejaxrl", options.purejaxrl, "--turns", turns, "--out", options.out]
        base += ["--seconds", str(options.seconds), "--repeats", str(options.repeats)]
        quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
        started = time.monotonic()
        workers = [subprocess.Popen([*base, w], env=quiet) for w in options.work]
        while time.monotonic() < started + options.wait:
            ready = len(list(Path(turns).glob("ready-*")))
            if ready + sum(w.poll() not in (None, 0) for w in workers) == len(workers):
                break
            time.sleep(0.5)
        print(f"{ready} of {len(workers)} compiled after {time.monotonic() - started:.0f} s", flush=True)
        (Path(turns) / "go").touch()
        for worker in workers:
            worker.wait()


def work(options: argparse.Namespace, description: str) -> None:
    """Compile the contenders, wait for the turn, measure, and add the rows to the results."""
    from nextpolicy.bench import contenders, peers
    from nextpolicy.bench.measure import lengths, measure, table

    env, count, *rest = description.split(":")
    env, _, backend = env.partition("@")
    members, turns = int(count), Path(options.turns)
    fields: dict[str, Any] = dict(SAME_NETWORK) if env.startswith("gymnax/") else dict(SHORT_START)
    fields |= {"env_options": {"backend": backend}} if backend else {}
    made = []
    for name in rest[0].split(",") if rest else ["ppo", "purejaxrl"]:
        if name == "purejaxrl":
            made.append(peers.purejaxrl(options.purejaxrl, env, members, fields))
        elif name == "simulator":
            made.append(contenders.simulator(env, members, fields))
        else:
            algo = "ppo,sv-static,sv-dynamic" if name == "all" else name
            made.append(contenders.ours(env, algo, members, fields))
    rounds = lengths(made, options.seconds)  # compiles all there is to compile
    (turns / f"ready-{os.getpid()}").touch()
    while not (turns / "go").exists():
        time.sleep(0.2)
    with (turns / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        rows = measure(made, members, rounds, options.repeats)
        print(f"{env}\n{table(rows)}", flush=True)
        file = Path(options.out)
        before = json.loads(file.read_text() or "[]")
        file.write_text(json.dumps([*before, *({"env": env, "backend": backend, **row} for row in rows)], indent=1))


if __name__ == "__main__":
    main()
