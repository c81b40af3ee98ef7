"""Reports without a PPO to compare with, and colours that do not depend on what else is there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.cli import main as cli
from nextpolicy.report import figures
from nextpolicy.report.comparable import load_all

from .synthetic import write_run
from .test_page import section, text_of

RETURNS = {"episode_return": lambda algo, seed, k: np.where(k >= 18, 10.0 + seed + (k == 19), 1.0)}
DASH = "–"
COLOURS = {"ppo": "#5a636e", "sv-static": "#c2410c", "sv-dynamic": "#0f62ce"}
SLOTS = {"ppo": 0, "sv-static": 1, "sv-dynamic": 2}


def page_of(tmp_path: Path, *options: str) -> str:
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html"), *options]) == 0
    return (tmp_path / "r.html").read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The README's first call: one algorithm on one environment, finished."""
    root = tmp_path_factory.mktemp("alone")
    write_run(root / "runs" / "a", "gymnax/CartPole-v1", seeds=3, algo=("sv-dynamic",), columns=RETURNS)
    page_of(root)
    return root


def columns(table: str) -> dict[str, list[str]]:
    """Cells by heading."""
    head = [text_of(h) for h in re.findall(r"<th scope=\"col\".*?</th>", table)]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr class.*?</tr>", table)]
    return {heading: [text_of(row[i]) for row in rows] for i, heading in enumerate(head)}


def test_a_page_of_one_variant_is_full(alone):
    page = (alone / "r.html").read_text()
    assert "<h1>sv-dynamic on gymnax/CartPole-v1</h1>" in page
    # 20 rounds, of which 10 updated; the last tenth has returns of 10 and 11 (+ seed).
    tiles = [text_of(t) for t in re.findall(r'<div class="tile".*?</div>', page)]
    assert [" ".join(t.split()[:-1]) if t.startswith("Steps") else t.split(" [")[0] for t in tiles][:3] == [
        "Score 11.5",
        "Final return 12.0",
        "Target updates 10.0",
    ]
    steps = load_all([alone / "runs"])[0].total_steps
    assert f"Steps {steps:,} of each seed" in tiles[3]
    assert re.search(
        r"Score 11\.5 \[1[01]\.\d, 1[12]\.\d\] return over the last 10 % of steps, mean of 3 seeds", tiles[0]
    )
    summary = text_of(page.partition('<div class="summary">')[2].partition("</div>")[0])
    assert "sv-dynamic on gymnax/CartPole-v1 scored 11.5 [" in summary
    assert "There is no PPO run to compare with." in summary
    assert "sv-dynamic on gymnax/CartPole-v1 updated its target 10.0 times, in 50.0 % of rounds." in summary
    assert "yet" not in summary
    assert "come with the first scores" not in page


def test_a_page_of_one_variant_has_no_column_of_dashes_and_nothing_of_ppo(alone):
    page = (alone / "r.html").read_text()
    tables = re.findall(r"<table>.*?</table>", page, re.DOTALL)
    assert tables
    for table in tables:
        for heading, shown in columns(table).items():
            assert set(shown) - {DASH, ""}, heading
    scores = columns(section(page, "scores"))
    assert scores["Score"][0].startswith("11.5 ± 1.00 [")
    for heading in ("Final return", "Target updates", "Steps", "Value loss, all rounds", "Value loss, last 10 %"):
        assert heading in scores
    for name in ("aggregate", "bars", "environments"):
        assert section(page, name) == ""
        assert f'href="#{name}"' not in page
    for name in ("scores", "curves", "gate", "runs"):
        assert section(page, name) != ""


def test_files_of_one_variant(alone):
    folder = alone / "r-files"
    names = {p.name for p in folder.iterdir()}
    assert {"scores.csv", "scores.md", "scores.tex", "members.csv", "default-learning-curves.svg"} <= names
    assert not {n for n in names if n.startswith("aggregate") or "bars" in n}
    (row,) = pd.read_csv(folder / "scores.csv").to_dict("records")
    assert (row["score"], row["final_return"], row["updates"], row["seeds"]) == (11.5, 12.0, 10.0, 3)
    assert "11.5 $\\pm$ 1.00" in (folder / "scores.tex").read_text()


def test_ppo_alone_and_several_variants_without_ppo(tmp_path):
    write_run(tmp_path / "runs" / "a", "brax/ant", algo=("ppo",), columns=RETURNS)
    page = page_of(tmp_path, "--page-only")
    assert "<h1>ppo on brax/ant</h1>" in page
    assert "ppo on brax/ant scored 11.5 [" in page
    assert "There is no PPO run" not in page
    assert section(page, "gate") == ""  # PPO has none
    write_run(tmp_path / "runs" / "b", "brax/hopper", algo=("sv-static", "sv-dynamic"), columns=RETURNS)
    write_run(tmp_path / "runs" / "c", "brax/reacher", algo=("sv-static",), state="running")
    (tmp_path / "runs" / "a" / "config.json").unlink()
    page = page_of(tmp_path, "--page-only")
    assert "<h1>2 variants on 2 environments</h1>" in page
    tiles = [text_of(t) for t in re.findall(r'<div class="tile".*?</div>', page)]
    assert [t.partition(" score")[0] for t in tiles] == [f"sv-{v} on brax/ hopper 11.5" for v in ("static", "dynamic")]
    assert "running: 20 of 20 rounds done" in section(page, "scores")
    assert all(set(shown) - {DASH, ""} for shown in columns(section(page, "scores")).values())


def test_returns_stand_beside_a_comparison_with_ppo_too(tmp_path):
    write_run(tmp_path / "runs" / "a", "brax/ant", columns=RETURNS)
    page = page_of(tmp_path, "--page-only")
    assert "<h1>Stable-Value PPO against PPO</h1>" in page
    assert columns(section(page, "scores"))["Variant"] == ["ppo", "sv-static", "sv-dynamic"]
    assert section(page, "bars") != ""


def test_a_mean_of_zero_leaves_the_returns(tmp_path):
    zero = {"episode_return": lambda algo, seed, k: np.full(len(k), 0.0 if algo == "ppo" else 3.0)}
    write_run(tmp_path / "runs" / "a", "brax/ant", columns=zero, algo=("ppo", "sv-static"))
    page = page_of(tmp_path, "--page-only")
    assert "ppo on brax/ant scored 0 [0, 0]; sv-static on brax/ant scored 3.00 [3.00, 3.00]" in page
    for name in ("aggregate", "scores"):
        assert all(set(shown) - {DASH, ""} for shown in columns(section(page, name)).values())


def test_a_finished_run_without_a_score_says_where_to_look(tmp_path):
    none = {"episodes": lambda algo, seed, k: np.zeros(len(k), int)}
    write_run(tmp_path / "runs" / "a", "brax/ant", algo=("sv-static",), columns=none)
    page = page_of(tmp_path, "--page-only")
    assert "No member has a score; the table says why." in page
    assert "no episode ended in the last 10 % of its steps" in section(page, "scores")


@pytest.mark.parametrize(
    "algos",
    [("sv-dynamic",), ("sv-static",), ("ppo",), ("sv-dynamic", "sv-static"), ("sv-dynamic", "ppo")],
    ids=", ".join,
)
def test_a_variant_has_its_colour_whatever_else_is_there(algos, tmp_path):
    write_run(tmp_path / "runs" / "a", "brax/ant", algo=algos)
    page = page_of(tmp_path, "--page-only")
    buttons = dict(re.findall(r'var\(--c(\d)\)"></i></span>([\w-]+)</button>', page)[::-1])
    assert {variant: int(slot) for slot, variant in buttons.items()} == {a: SLOTS[a] for a in algos}
    css = dict(re.findall(r"--(c\d): (#\w+);", page.partition("@media")[0]))
    assert {a: css[f"c{SLOTS[a]}"] for a in algos} == {a: COLOURS[a] for a in algos}
    axes = figures.learning_curves(load_all([tmp_path / "runs"]), algos).axes[0]
    assert {line.get_label(): line.get_color() for line in axes.lines} == {a: COLOURS[a] for a in algos}


def test_swept_variants_follow_the_fixed_colours(tmp_path):
    write_run(tmp_path / "runs" / "a", "brax/ant", algo=("sv-dynamic",), sweep={"delta_v": (0.1, 0.2)}, seeds=1)
    write_run(tmp_path / "runs" / "b", "brax/ant", algo=("ppo",), seeds=1)
    runs = load_all([tmp_path / "runs"])
    variants = [m.variant for run in runs for m in run.members]
    lines = figures.learning_curves(runs, variants).axes[0].lines
    colours = {line.get_label(): line.get_color() for line in lines}
    assert colours.pop("ppo") == COLOURS["ppo"]
    assert len(set(colours.values()) - set(COLOURS.values())) == 2
