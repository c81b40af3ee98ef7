"""Measurement of contenders: number of rounds, turns, and rows with rates and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np

from nextpolicy.bench.contenders import Contender, Timing, timed
from nextpolicy.run.processes import peak_memory

_MOST_ROUNDS = 2000


def lengths(made: list[Contender], seconds: float) -> dict[str, int]:
    """The number of rounds that takes each contender about `seconds`, after compilation.

    A contender that compiles for each number of rounds uses that of the previous contender, which saves compilations.
    """
    found: dict[str, int] = {}
    for c in made:
        borrowed = list(found.values())[-1:] if c.one_length else []
        found[c.name] = borrowed[0] if borrowed else _length(c, seconds)
        c.run(found[c.name])
    return found


def _length(c: Contender, seconds: float) -> int:
    """The number of rounds that takes about `seconds`, after compilation."""
    c.run(2)
    each = max(take(c, 2).seconds / 2, 1e-5)
    return int(min(max(seconds / each, 2), _MOST_ROUNDS))


def take(c: Contender, rounds: int) -> Timing:
    """The time of `rounds` rounds, without fixed overhead."""
    if c.clock is not None:
        return c.clock(rounds)
    whole = timed(lambda: c.run(rounds))
    if c.overhead is None:
        return whole
    fixed = np.median(
        [timed(c.overhead) for _ in range(3)], axis=0
    )  # a median, since outliers matter in short measurements
    return Timing(*(np.asarray(whole) - fixed).tolist())


def measure(made: list[Contender], members: int, rounds: dict[str, int], repeats: int) -> list[dict[str, Any]]:
    """One row per contender, and one per algorithm of nextpolicy as a ratio to its PPO.

    Contenders take turns, so that a slow phase of the machine affects all of them. A ratio is the median over turns of
    the ratio within a turn. `cpu_ratio` compares CPU time per step and hardly depends on other load.
    """
    rates: dict[str, list[tuple[float, float]]] = {c.name: [] for c in made}
    for _ in range(repeats):
        for c in made:
            took, steps = take(c, rounds[c.name]), c.steps_per_round * rounds[c.name]
            if took.seconds <= 0:
                raise RuntimeError(
                    f"{c.name}: expected {rounds[c.name]} rounds to take longer than the fixed overhead, "
                    f"got {took.seconds:.2g} s without it; increase --seconds"
                )
            rates[c.name].append((steps / took.seconds, steps / max(took.cpu_seconds, 1e-9)))
    table = {name: np.asarray(pairs) for name, pairs in rates.items()}
    first = table[made[0].name]
    rows = [{**_row(c, table[c.name], first), "members": members, "rounds": rounds[c.name]} for c in made]
    return rows + [{**row, "members": members} for row in _against_ppo(table)]


def _row(c: Contender, rates: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """`rates` [turns, 2]: steps per second and per CPU second."""
    memory, whose = c.memory() or (peak_memory(), "process")
    return {
        "contender": c.name,
        "steps_per_second": float(np.median(rates[:, 0])),
        "steps_per_cpu_second": float(np.median(rates[:, 1])),
        "ratio": float(np.median(rates[:, 0] / first[:, 0])),
        "cpu_ratio": float(np.median(rates[:, 1] / first[:, 1])),
        "spread": float(np.ptp(1 / rates[:, 0]) / np.median(1 / rates[:, 0])),
        "compile_seconds": c.compile_seconds,
        "peak_memory_bytes": memory,
        "memory_of": whose,
    }


def _against_ppo(rates: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    ppo = rates.get("nextpolicy ppo")
    others = [n for n in rates if n.startswith("nextpolicy ") and n != "nextpolicy ppo"]
    if ppo is None:
        return []
    return [
        {
            "contender": f"{name.removeprefix('nextpolicy ')} / ppo",
            "ratio": float(np.median(rates[name][:, 0] / ppo[:, 0])),
            "cpu_ratio": float(np.median(rates[name][:, 1] / ppo[:, 1])),
        }
        for name in others
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a text table. Ratios are relative to the first contender with as many members.

    `*` marks the memory of a whole process, shown if that of the contender alone is unknown.
    """
    head = (
        f"{'contender':<40} {'members':>7} {'steps/s':>12} {'ratio':>7} {'by CPU':>7} {'spread':>7} {'compile':>8} "
        f"{'memory':>10}"
    )
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: dict[str, Any]) -> str:
    name = f"{row['contender']:<40} {row['members']:>7}"
    ratios = f"{row['ratio']:>7.3f} {row['cpu_ratio']:>7.3f}"
    if "steps_per_second" not in row:
        return f"{name} {'':>12} {ratios}"
    star = "*" if row["memory_of"] == "process" else " "
    return (
        f"{name} {row['steps_per_second']:>12,.0f} {ratios} {row['spread']:>7.1%} {row['compile_seconds']:>7.1f}s "
        f"{row['peak_memory_bytes'] / 2**20:>6,.0f} MB{star}"
    )


def until_return(made: list[Contender], members: int, target: float) -> list[dict[str, Any]]:
    """Time to a given return, without compilation, for every contender that supports it."""
    able = [(c.name, c.until(target)) for c in made if c.until is not None]
    return [{"contender": name, "members": members, "until_return": target, **got._asdict()} for name, got in able]


def until_table(rows: list[dict[str, Any]]) -> str:
    """The rows of `until_return` as a text table."""
    head = f"{'contender':<40} {'members':>7} {'return':>10} {'seconds':>9} {'env steps':>12} {'there':>6}"
    return "\n".join([head, *(_until_line(row) for row in rows)])


def _until_line(row: dict[str, Any]) -> str:
    seconds = "never" if row["seconds"] is None else f"{row['seconds']:.2f}"
    name = f"{row['contender']:<40} {row['members']:>7} {row['until_return']:>10g}"
    return f"{name} {seconds:>9} {row['env_steps']:>12,} {row['there']:>6}"
