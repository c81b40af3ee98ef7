"""`nextpolicy bench`: contenders on the same work, alternating in one process, warm, as ratios."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nextpolicy.bench import contenders, peers
from nextpolicy.bench.contenders import Contender, timed
from nextpolicy.config import FIELDS, ConfigError
from nextpolicy.run.folder import describe_machine, write_json

OWN = ("ppo", "sv-static", "sv-dynamic", "all", "simulator")
PEERS = ("purejaxrl",)


def main(arguments: list[str], parser_class: Any, parse: Callable[..., Any]) -> None:
    """Measure and print; `--out` keeps every number as JSON."""
    parser = parser_class(prog="nextpolicy bench", description=__doc__)
    parser.add_argument("env", help="Environment id.")
    everyone = ", ".join(OWN + PEERS)
    parser.add_argument("--contenders", default="ppo,sv-dynamic,sv-static,simulator", help=f"Of {everyone}.")
    parser.add_argument("--members", default="1", help="Members to measure with, e.g. 1,4,12,36.")
    parser.add_argument("--purejaxrl", help="Checkout of PureJaxRL, for the contender of that name.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Aimed length of one measurement.")
    parser.add_argument("--repeats", type=int, default=3, help="Measurements per contender; the median counts.")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="Config fields of the work.")
    parser.add_argument("--out", help="JSON file for every number; must not exist.")
    options = parse(parser, arguments)
    names = options.contenders.split(",")
    unknown = [n for n in names if n not in OWN + PEERS]
    if unknown:
        raise ConfigError(f"contenders: got {unknown[0]!r}, takes of {', '.join(OWN + PEERS)}")
    if options.out and Path(options.out).exists():
        raise ConfigError(f"out: {options.out} exists, takes a new file; nothing was written")
    fields = _fields(options.set)
    rows = []
    for members in _counts(options.members):
        made = [_make(n, options.env, members, fields, options) for n in names]
        present = [c for c in made if c is not None]
        rows += measure(present, members, lengths(present, options.seconds), options.repeats)
    print(table(rows))
    if options.out:
        write_json(Path(options.out), {"env": options.env, "fields": fields, "rows": rows, "about": describe_machine()})


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(f"members: got {text!r}, takes whole numbers of at least 1, separated by commas")
    return counts


def _fields(pairs: list[str]) -> dict[str, Any]:
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    for pair in pairs:
        if "=" not in pair or pair.split("=")[0] not in FIELDS:
            raise ConfigError(f"set: got {pair!r}, takes name=value with the name of a config field")
    return fields


def _make(name: str, env: str, members: int, fields: dict[str, Any], options: Any) -> Contender | None:
    if name == "simulator":
        return contenders.simulator(env, members, fields)
    if name == "all":
        return contenders.ours(env, "ppo,sv-static,sv-dynamic", members, fields) if members % 3 == 0 else None
    if name in OWN:
        return contenders.ours(env, name, members, fields)
    if not options.purejaxrl:
        raise ConfigError("purejaxrl: takes --purejaxrl with the path of a checkout")
    return peers.purejaxrl(options.purejaxrl, env, members, fields)


def measure(made: list[Contender], members: int, rounds: dict[str, int], repeats: int) -> list[dict[str, Any]]:
    """Rates of all contenders, taken in turns so that a slow minute of the machine hits them alike."""
    times: dict[str, list[float]] = {c.name: [] for c in made}
    for _ in range(repeats):
        for c in made:
            fixed = timed(c.notes["overhead"]) if "overhead" in c.notes else 0.0
            times[c.name].append(timed(lambda c=c: c.run(rounds[c.name])) - fixed)
    rates = {c.name: c.steps_per_round * rounds[c.name] / statistics.median(times[c.name]) for c in made}
    first = rates[made[0].name]
    return [
        {
            "contender": c.name,
            "members": members,
            "steps_per_second": rates[c.name],
            "ratio": rates[c.name] / first,
            "spread": float(np.ptp(times[c.name]) / np.median(times[c.name])),
            "compile_seconds": c.compile_seconds,
            "peak_memory_bytes": peak_memory(),
        }
        for c in made
    ]


def lengths(made: list[Contender], seconds: float) -> dict[str, int]:
    """Rounds for each to take about `seconds`, all warm.

    A contender whose every length is a program of its own (it has an `overhead`) takes those of the one before it:
    finding its own would cost further compilations.
    """
    found: dict[str, int] = {}
    for c in made:
        borrowed = list(found.values())[-1:] if "overhead" in c.notes else []
        found[c.name] = borrowed[0] if borrowed else _length(c, seconds)
        c.run(found[c.name])
    return found


def _length(c: Contender, seconds: float) -> int:
    """Rounds that take about `seconds`, warm."""
    c.run(2)
    fixed = timed(c.notes["overhead"]) if "overhead" in c.notes else 0.0
    each = max((timed(lambda: c.run(2)) - fixed) / 2, 1e-5)
    return int(min(max(seconds / each, 2), 2000))


def peak_memory() -> int:
    """Most bytes in use so far: on the device where it says, else of this process."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people; ratios are to the first contender with as many members."""
    head = f"{'contender':<40} {'members':>7} {'steps/s':>12} {'ratio':>7} {'spread':>7} {'compile':>8} {'memory':>9}"
    lines = [
        f"{r['contender']:<40} {r['members']:>7} {r['steps_per_second']:>12,.0f} {r['ratio']:>7.3f} "
        f"{r['spread']:>7.1%} {r['compile_seconds']:>7.1f}s {r['peak_memory_bytes'] / 2**20:>6,.0f} MB"
        for r in rows
    ]
    return "\n".join([head, *lines])
