"""Sensitivity of the paper's Four Rooms results to settings: PPO and dynamic SV-PPO, one change at a time.

    python benchmarks/four_rooms_sweep.py [--out results/four-rooms] [--seeds 8] [--rounds 195] [--minutes 0]

Settings that differ only in traced fields are trained in one program. Results are written after every program:
`sweep_members.csv` has one row per member, `sweep.csv` and `sweep.md` one row per setting. Settings that already have
results with the same numbers of seeds and rounds are skipped.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # members are already solved in parallel

import jax

from nextpolicy.config import TrainConfig, presets
from nextpolicy.studies.four_rooms import summary
from nextpolicy.studies.four_rooms.group import train

ALGOS = ("ppo", "sv-dynamic")


def batch(num_envs: int, **more: Any) -> dict[str, Any]:
    """Another number of environments, with four minibatches per epoch."""
    return {"num_envs": num_envs, "minibatch_size": num_envs * 128 // 4, **more}


# The settings of a group differ only in traced fields, so they are trained as one population.
GROUPS: list[dict[str, dict[str, Any]]] = [
    {
        "default settings (batch 1024)": {},
        "constant learning rate": {"learning_rate_final": 2.5e-4},
        "gamma .995": {"gamma": 0.995},
    },
    {"noise: success .2": {"env_options": {"noise": "success"}}},
    {"no LayerNorm": {"layer_norm": False}},
    {"shared torso": {"shared_torso": True}},
    {"centred advantages": {"advantage_norm": "standardise"}},
    {"advantage kind: retrace": {"advantage_kind": "retrace"}},
    {"advantage kind: vtrace": {"advantage_kind": "vtrace"}},
    {"diff kind: network": {"diff_kind": "network"}},
    {"time limit as termination": {"truncation": "terminal"}},
    {"batch 2048": batch(16)},
    {"batch 4096": batch(32), "batch 4096, lr 1e-3": batch(32, learning_rate=1e-3)},
    {"batch 8192": batch(64)},
]


def configuration(changes: dict[str, Any], seeds: int, rounds: int) -> TrainConfig:
    config = presets.build("four-rooms", algo=ALGOS, seeds=seeds, **changes)
    return config.replace(total_env_steps=rounds * config.batch_size)


def run_group(configs: dict[str, TrainConfig]) -> dict[str, list[dict[str, Any]]]:
    """Train the group as one population. Returns the rows of the members of each setting."""
    found = train(configs)
    return {name: summary.member_rows(x.mdp, x.members, x.metrics, x.exact) for name, x in found.items()}


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per setting: medians of both algorithms with intervals, and paired differences of the bottom-left gap."""
    lines = []
    for setting in dict.fromkeys(r["setting"] for r in rows):
        mine = [r for r in rows if r["setting"] == setting]
        line: dict[str, Any] = {"setting": setting, "seeds": len(mine) // 2, "optimal_value": mine[0]["optimal_value"]}
        for algo in ALGOS:
            line[f"{algo} near optimal"] = int(summary.of_algo(mine, algo, "near_optimal").sum())
            for column in COLUMNS:
                line[f"{algo} {column}"] = summary.median_interval(summary.of_algo(mine, algo, column))
        line["sv-dynamic updates mean"] = float(summary.of_algo(mine, "sv-dynamic", "updates").mean())
        line["sv-dynamic kl_ratio"] = summary.median_interval(summary.of_algo(mine, "sv-dynamic", "kl_ratio"))
        difference = summary.paired(mine, "gap_bottom_left", "ppo", "sv-dynamic")
        line["gap_bottom_left ppo - sv"] = summary.median_interval(difference)
        line["sv gap smaller on"] = int((difference > 0).sum())
        line["certificates broken"] = sum(int(r["certificates"]) - int(r["certificates_held"]) for r in mine)
        lines.append(line)
    return lines


COLUMNS = (
    "final_value",
    "value_at_60",
    "largest_late_drop",
    "gap_bottom_left",
    "top_from_doorway",
    "overestimate_bottom_left",
)


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write all three files, each atomically."""
    _write_csv(out / "sweep_members.csv", rows)
    lines = table(rows)
    flat = []
    for line in lines:
        spread = {}
        for name, value in line.items():
            if isinstance(value, summary.Interval):
                spread |= {name: value.median, f"{name} low": value.low, f"{name} high": value.high}
            else:
                spread[name] = value
        flat.append(spread)
    _write_csv(out / "sweep.csv", flat)
    _replace(out / "sweep.md", markdown(lines))


def markdown(lines: list[dict[str, Any]]) -> str:
    """The table of docs/four-rooms.md."""
    head = (
        "| Setting | V*(s0) | V(s0) PPO | V(s0) SV | near V* PPO, SV | updates SV | KL ratio SV | late drop PPO | "
        "late drop SV | bottom-left gap PPO | bottom-left gap SV | PPO - SV, paired | SV smaller on | "
        "P(top, doorway) PPO | P(top, doorway) SV |"
    )
    text = [head, "|" + "---|" * (head.count("|") - 1)]
    for x in lines:
        near = f"{x['ppo near optimal']}, {x['sv-dynamic near optimal']} of {x['seeds']}"
        cells = [
            x["setting"],
            f"{x['optimal_value']:.4f}",
            *(x[f"{a} final_value"] for a in ALGOS),
            near,
            f"{x['sv-dynamic updates mean']:.1f}",
            x["sv-dynamic kl_ratio"],
            *(x[f"{a} largest_late_drop"] for a in ALGOS),
            *(x[f"{a} gap_bottom_left"] for a in ALGOS),
            x["gap_bottom_left ppo - sv"],
            f"{x['sv gap smaller on']} of {x['seeds']}",
            *(x[f"{a} top_from_doorway"] for a in ALGOS),
        ]
        text.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(text) + "\n"


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _replace(path, buffer.getvalue())


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, with numbers and booleans converted."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="results/four-rooms", type=Path)
    parser.add_argument("--seeds", default=8, type=int)
    parser.add_argument("--rounds", default=195, type=int)
    parser.add_argument("--only", default="", help="Run only groups with a setting whose name contains this.")
    parser.add_argument(
        "--minutes", default=0.0, type=float, help="Start no new program after this time; 0 for no limit."
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = read(options.out / "sweep_members.csv")
    same = lambda r: r["rounds"] == options.rounds and r["of_seeds"] == options.seeds  # noqa: E731
    rows = [r for r in rows if same(r)]
    started, failed = time.monotonic(), 0
    print(f"{jax.devices()}; {len(rows)} members are done already", flush=True)
    for number, group in enumerate(GROUPS, 1):
        known = {r["setting"] for r in rows}
        if set(group) <= known or not any(options.only in name for name in group):
            continue
        if options.minutes and time.monotonic() - started > 60 * options.minutes:
            print(f"time limit reached before {', '.join(group)}; run the same command to continue", flush=True)
            return 3
        begun = time.monotonic()
        try:
            lines = run_group({n: configuration(c, options.seeds, options.rounds) for n, c in group.items()})
        except Exception as error:  # a setting that fails must not stop the others
            failed += 1
            print(f"[{number}/{len(GROUPS)}] {', '.join(group)}: FAILED, {type(error).__name__}: {error}", flush=True)
            continue
        facts = {"rounds": options.rounds, "of_seeds": options.seeds, "device": jax.devices()[0].device_kind}
        rows = [r for r in rows if r["setting"] not in group]
        rows += [{"setting": name, **facts, **row} for name, mine in lines.items() for row in mine]
        order = [name for g in GROUPS for name in g]
        rows.sort(key=lambda r: order.index(r["setting"]))
        write(options.out, rows)
        seconds = time.monotonic() - begun
        print(f"[{number}/{len(GROUPS)}] {', '.join(group)}: {seconds:.0f} s", flush=True)
    print(f"{options.out / 'sweep.md'}: {len(rows)} members, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
