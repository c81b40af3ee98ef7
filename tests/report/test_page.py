"""What stands on the page, and what the figures draw, from runs whose numbers are known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.report import bars, curves, drawing, figures, html, palette
from nextpolicy.report.comparable import load_all
from nextpolicy.report.tables import Comparison, compare

from .synthetic import lively, write_run

VARIANTS = ["ppo", "sv-static", "sv-dynamic"]
LEVELS = {"ppo": 10.0, "sv-static": 8.0, "sv-dynamic": 12.0}


def score(levels: dict[str, float], spread: float = 1.0):
    """Returns of seeds 0, 1, 2 that are `spread` below, at and above a variant's level."""
    return {"episode_return": lambda algo, seed, k: np.full(len(k), levels[algo] + spread * (seed - 1))}


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Comparison:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "ant", "brax/ant", columns=score(LEVELS))
    write_run(root / "hopper", "brax/hopper", columns=score({"ppo": 10.0, "sv-static": 40.0, "sv-dynamic": 10.0}, 0.0))
    write_run(root / "pusher", "brax/pusher", state="failed", reason="rewards <were> not finite")
    return compare(load_all([root]))


@pytest.fixture(scope="module")
def page(compared) -> str:
    return html.page(compared, "A title")


def text_of(part: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def section(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_every_run_has_its_settings_and_versions(page):
    runs = section(page, "runs")
    assert runs.count("<details>") == 3
    for pair in (
        "<dt>learning_rate</dt><dd>0.0003</dd>",
        "<dt>jax</dt><dd>0.0</dd>",
        "<dt>device</dt><dd>1 x test</dd>",
        "<dt>nextpolicy</dt><dd>0.1.0</dd>",
        "<dt>seeds</dt><dd>[0, 1, 2]</dd>",
    ):
        assert runs.count(pair) == 3, pair
    assert "brax/pusher pusher (failed, 20 of 20 rounds: rewards &lt;were&gt; not finite)" in text_of(runs)


def test_the_papers_numbers_stand_below_ours_with_the_difference(page):
    rows = re.findall(r'<tr class="(\w+)" data-of="(\d)">(.*?)</tr>', section(page, "aggregate"))
    assert [(kind, of) for kind, of, _ in rows] == [
        (kind, of) for of in "12" for kind in ("ours", "paper", "difference")
    ]
    ours, paper, difference = (text_of(row) for _, _, row in rows[3:])
    assert ours.startswith("sv-dynamic ours 2 of 3 3 110.0 [")  # of 120 and 100
    assert paper.startswith("sv-dynamic paper – – 100.2 ")
    assert difference.startswith("sv-dynamic difference – – 9.8 ")


def test_tiles_begin_with_the_best(page):
    tiles = re.findall(r'<div class="tile" data-of="(\d)".*?</div>', page)
    assert tiles == ["1", "2"]  # medians of 240 and 110
    first = text_of(page.partition('<div class="tile"')[2].partition("</div>")[0].partition(">")[2])
    assert first.startswith("sv-static 240.0 % of PPO's score, median [")
    assert first.endswith("better on 1, worse on 1 of 2 environments at p &lt; 0.1")


def test_bars_are_sorted_and_say_who_leads(page):
    part = section(page, "bars")
    names = re.findall(r'<div class="name">(.*?)<small>(.*?)</small>', part)
    assert [text_of(name).replace(" ", "") for name, _ in names] == ["brax/hopper", "brax/ant", "brax/pusher"]
    leads = ["sv-static ahead by 300.0 points", "sv-dynamic ahead by 20.0 points", "nothing to compare"]
    assert [lead for _, lead in names] == leads
    assert part.count("0 seeds (all 3 seeds and PPO&#x27;s 3 seeds failed") == 2  # on hovering
    assert part.count("all 3 seeds and PPO&#x27;s 3 seeds failed: rewards &lt;were&gt; not finite</span>") == 2
    assert "400.0* [400.0, 400.0]" in text_of(part)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"a": 110.0, "b": 104.0}, "a ahead by 6.0 points"),
        ({"a": 97.0, "b": 80.0}, "PPO ahead by 3.0 points"),
        ({"a": 100.0}, "level"),
        ({"a": np.nan, "b": 120.0}, "b ahead by 20.0 points"),
        ({"a": np.nan}, "nothing to compare"),
    ],
)
def test_margins(scores, words):
    assert bars.margin({v: {"score_pct_of_ppo": s} for v, s in scores.items()}, "PPO") == words


def test_the_scale_of_bars_holds_all_scores_and_is_never_too_narrow():
    assert bars.span([]) == bars.span([np.nan, 99.0]) == (75.0, 133.0)
    assert bars.span([50.0, 300.0]) == (50.0 / bars.ROOM, 300.0 * bars.ROOM)
    assert bars.span([-40.0, 2.0]) == (10.0 / bars.ROOM, 133.0)
    assert bars.marks(75.0, 133.0) == [80, 90, 100, 110, 125]
    assert bars.marks(20.0, 900.0) == [25, 50, 100, 200, 400, 800]


def test_labels_of_the_scale_keep_their_distance():
    assert bars.apart([80, 90, 95, 100, 104, 120], float, 10.0) == [80, 90, 100, 120]


def track(value: float, low: float, high: float, variant: str = "sv-static") -> str:
    row = {"score_pct_of_ppo": value, "score_pct_of_ppo_low": low, "score_pct_of_ppo_high": high}
    table = pd.DataFrame([{"env": "brax/ant", **row, "note": "", "seeds": 3, "significant": False}])
    return bars.bars("", {variant: table}, VARIANTS)


def test_intervals_that_leave_the_scale_are_marked():
    assert '<b class="" ' in track(100.0, 90.0, 110.0)
    assert '<b class="from-left" style="left:0.00%' in track(100.0, 10.0, 110.0)
    assert '<b class="to-right" ' in track(100.0, 90.0, 900.0)
    assert "<b" not in track(100.0, np.nan, np.nan)


def test_a_bar_goes_from_100_to_its_score():
    low, high = bars.span([120.0])
    at = [100 * np.log(v / low) / np.log(high / low) for v in (100.0, 120.0)]
    assert f"left:{at[0]:.2f}%;width:{at[1] - at[0]:.2f}%" in track(120.0, np.nan, np.nan)
    assert f'class="one-hundred" style="left:{at[0]:.2f}%"' in track(120.0, np.nan, np.nan)


def test_a_colours_second_use_is_striped():
    assert bars.paint(0).startswith('class="once" style="--c: var(--c0)')
    assert bars.paint(9).startswith('class="again" style="--c: var(--c1)')


def test_suites_are_named_where_there_are_several(tmp_path, page):
    assert "<h3>Brax</h3>" not in page
    write_run(tmp_path / "a", "brax/ant")
    write_run(tmp_path / "b", "gymnax/Breakout-MinAtar")
    both = html.page(compare(load_all([tmp_path])), "A title")
    assert "<h3>Brax</h3>" in both
    assert "<h3>MinAtar</h3>" in both
    assert "<p>On Brax, sv-static has a median" in both
    assert " of 1 environment of Brax at p &lt; 0.1</small>" in both


def test_curves_hold_every_member_and_their_mean(compared):
    runs = [run for run in compared.runs if run.env == "brax/ant"]
    drawn = curves.series(runs, VARIANTS, "return")
    assert [(s["v"], s["m"], s["s"]) for s in drawn[:9]] == [(v, 3 * v + s, s) for v in range(3) for s in range(3)]
    assert [(s["v"], s["m"], s["s"], set(s["y"])) for s in drawn[9:]] == [
        (0, -1, 3, {10.0}),
        (1, -1, 3, {8.0}),
        (2, -1, 3, {12.0}),
    ]
    lived = curves.series(runs, VARIANTS, "lifespan")
    assert [(s["v"], s["x"], s["y"]) for s in lived if s["s"] == 0] == [
        (0, list(range(20)), [1] * 20),
        (1, list(range(3, 20, 4)), [4] * 5),
        (2, list(range(1, 20, 2)), [2] * 10),
    ]
    updates = [s["y"][-1] for s in curves.series(runs, VARIANTS, "updates") if s["m"] < 0]
    assert updates == [20, 5, 10]
    assert {s["v"] for s in curves.series(runs, VARIANTS, "diff")} == {2}  # only sv-dynamic has a threshold


# Figures


def of(compared: Comparison) -> dict[str, pd.DataFrame]:
    return {variant: table for (_, variant), table in compared.environments.items()}


def test_bars_of_print_have_the_tables_numbers(compared):
    (axes,) = figures.bars("brax", of(compared), VARIANTS).axes
    widths = [round(patch.get_width(), 6) for patch in axes.patches]
    assert widths == [0, -20, 300, 0, 20, 0]  # pusher, ant, hopper of sv-static, then of sv-dynamic
    assert [label.get_text().split("\n")[0] for label in axes.get_yticklabels()] == [
        f"brax/{env}" for env in ("pusher", "ant", "hopper")
    ]
    assert [note.get_text() for note in axes.texts] == ["no percentage"] * 2
    assert axes.get_xscale() == "symlog"


def test_the_scale_of_print_is_plain_where_scores_are_near(compared):
    near = {v: t[t["env"] == "brax/ant"] for v, t in of(compared).items()}
    assert figures.bars("brax", near, VARIANTS).axes[0].get_xscale() == "linear"


def test_scatter_has_ppo_at_the_origin_and_joins_an_environments_points(compared):
    (axes,) = figures.scatter("brax", of(compared), VARIANTS).axes
    static, dynamic, ppo = (c.get_offsets().data.tolist() for c in axes.collections)
    assert np.allclose(static, [[np.log10(4), -20], [np.log10(4), 300]])
    assert np.allclose(dynamic, [[np.log10(2), 20], [np.log10(2), 0]])
    assert ppo == [[0, 0]]
    joined = [line.get_xydata().tolist() for line in axes.lines[:2]]
    assert np.allclose(joined[0], [static[0], dynamic[0]])
    assert np.allclose(joined[1], [static[1], dynamic[1]])
    assert [note.get_text() for note in axes.texts] == ["ant", "hopper"]
    assert "at least 3 seeds" in axes.get_title()


def test_learning_curves_are_means_over_seeds_against_steps(compared):
    figure = figures.learning_curves(compared.runs, VARIANTS)
    ant = figure.axes[0]
    assert ant.get_title() == "brax/ant (3 seeds)"
    assert [set(line.get_ydata()) for line in ant.lines] == [{10.0}, {8.0}, {12.0}]
    run = compared.runs[0]
    assert ant.lines[0].get_xdata()[-1] == run.total_steps == ant.get_xlim()[1]
    low = {path.vertices[1:21, 1].min() for band in ant.collections[:1] for path in band.get_paths()}
    assert low == {9.0}  # of 27 equally likely samples of 9, 10 and 11, one has this mean: 3.7 %
    assert "failed, 20 of 20 rounds" in [note.get_text() for note in figure.axes[2].texts]


def test_rounds_without_an_episode_do_not_tear_a_line(tmp_path):
    gaps = {"episode_return": lambda algo, seed, k: np.where(k % 4 == 1, k, np.nan)}
    write_run(tmp_path / "a", "brax/ant", columns=gaps)
    line = figures.learning_curves(load_all([tmp_path]), VARIANTS).axes[0].lines[0]
    assert np.isnan(line.get_ydata()[0])  # before the first
    np.testing.assert_allclose(line.get_ydata()[1:18], np.arange(1, 18))


def test_diff_has_its_threshold_and_dynamic_variants_only(compared):
    axes = figures.diff_figure(compared.runs, VARIANTS).axes[0]
    curve, threshold = axes.lines
    assert set(curve.get_ydata()) == {0.5}
    assert list(threshold.get_ydata()) == [1, 1]
    assert axes.get_yscale() == "log"
    assert figures.diff_figure(compared.runs, ["ppo", "sv-static"]) is None


def test_lifespans_hold_until_the_next_update(compared):
    figure = figures.lifespan_figure(compared.runs, VARIANTS)
    right = next(a for a in figure.axes if a is not figure.axes[0] and a.bbox.bounds == figure.axes[0].bbox.bounds)
    assert [sorted(set(line.get_ydata())) for line in right.lines] == [[4.0], [2.0]]
    assert right.get_ylim()[0] == 0


def test_nothing_is_drawn_of_runs_without_a_round(tmp_path):
    run = write_run(tmp_path / "a", "brax/ant", state="running")
    for part in (run / "metrics").iterdir():
        part.unlink()
    runs = load_all([tmp_path])
    assert figures.learning_curves(runs, VARIANTS) is None
    assert figures.lifespan_figure(runs, VARIANTS) is None
    assert figures.diff_figure(runs, VARIANTS) is None


def test_the_same_figure_is_the_same_bytes(compared):
    first, again = (drawing.render(figures.scatter("brax", of(compared), VARIANTS)) for _ in range(2))
    assert first == again
    assert list(first) == ["svg", "png"]


def test_legends_of_long_names_take_fewer_columns():
    columns = {}
    for name in ("short", "sv-dynamic[delta_v=0.003,k_max=17]"):
        figure = figures.Figure(figsize=(7, 5), layout="constrained")
        drawing.legend(figure, {f"{name}{i}": figure.add_artist(figures_line()) for i in range(8)})
        columns[name] = figure.legends[0]._ncols
    assert list(columns.values()) == [4, 2]


def figures_line():
    from matplotlib.lines import Line2D

    return Line2D([0, 1], [0, 1])


def test_many_variants_are_told_apart(tmp_path: Path):
    sweep = {"delta_v": tuple(0.01 * (i + 1) for i in range(9))}
    write_run(tmp_path / "a", "brax/ant", seeds=1, algo=("sv-dynamic",), sweep=sweep, columns=lively(0))
    runs = load_all([tmp_path])
    variants = [member.variant for member in runs[0].members]
    lines = figures.learning_curves(runs, variants).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9


def test_page_and_figures_have_the_same_colours(page):
    light, _, dark = page.partition("@media")
    for part, colours in ((light, palette.COLOURS), (dark, palette.DARK)):
        found = dict(re.findall(r"--c(\d): (#\w+);", part))
        assert tuple(found[str(i)] for i in range(len(found))) == colours


def test_names_stand_at_the_ends_of_curves_where_they_fit(compared):
    axes = figures.learning_curves(compared.runs, VARIANTS).axes[0]
    assert {t.get_text(): t.get_color() for t in axes.texts if t.get_gid() == "name"} == {
        line.get_label(): line.get_color() for line in axes.lines
    }
    assert not axes.figure.legends
    # Two axes leave no room; many or long names neither.
    assert figures.lifespan_figure(compared.runs, VARIANTS).legends
    assert drawing.names_fit(["ppo"] * 4)
    assert not drawing.names_fit(["ppo"] * 5)
    assert not drawing.names_fit(["sv-dynamic[delta_v=0.1]"])


def test_names_are_moved_apart_and_no_further():
    assert drawing.spread([5.0, 1.0], 1.0) == [5.0, 1.0]
    assert drawing.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert drawing.spread([0.5, 0.45, 2.0], 0.1) == pytest.approx([0.525, 0.425, 2.0])


def test_one_seed_has_no_band(tmp_path):
    write_run(tmp_path / "a", "brax/ant", seeds=1, columns=lively(0))
    axes = figures.learning_curves(load_all([tmp_path]), VARIANTS).axes[0]
    assert len(axes.lines) == 3
    assert len(axes.collections) == 0
