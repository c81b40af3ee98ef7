"""What the figures show, read from their artists."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.quiver import Quiver

from nextpolicy.report import drawing
from nextpolicy.studies import page
from nextpolicy.studies.four_rooms import figures, maps, maze, summary
from nextpolicy.tabular import four_rooms_mdp, solve

from .helpers import made_up_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_up_study(tmp_path_factory.mktemp("study"))


def with_gid(figure, gid):
    return [a for axes in figure.axes for a in axes.get_children() if a.get_gid() == gid]


def panel(study, draw):
    return figures.panel(study, draw).axes[0]


def test_ticks_are_the_accepted_rounds(study):
    figure = figures.sheet(study, "learning-curves")
    ticks = with_gid(figure, "target-updates")
    assert len(ticks) == 4
    accepted = np.flatnonzero(study.trajectory.accepted[study.index("sv-dynamic", figures.shown_seed(study))])
    assert 0 < len(accepted) < study.rounds
    for line in ticks:
        np.testing.assert_array_equal(line.get_xdata(), accepted)


def test_threshold_and_optimum_lie_where_they_should(study):
    (threshold,) = with_gid(figures.panel(study, figures.gate), "threshold")
    assert list(threshold.get_ydata()) == [study.config.criterion.delta_v] * 2 == [0.1, 0.1]
    (optimal,) = with_gid(figures.panel(study, figures.value), "optimal")
    assert optimal.get_ydata()[0] == pytest.approx(0.8305, abs=1e-4)


CURVES = {figures.value: "value_behaviour", figures.error: "msve_next_alive", figures.shift: "tv_visitation_alive"}


def test_curves_are_medians_in_the_colours_of_the_report(study):
    for draw, name in CURVES.items():
        lines = [a for a in panel(study, draw).lines if a.get_gid() == "median"]
        assert [line.get_label() for line in lines] == [figures.NAMES[a] for a in study.algos]
        for line, algo in zip(lines, study.algos):
            np.testing.assert_allclose(line.get_ydata(), np.median(study.column(algo, name), axis=0))
            assert line.get_color() == drawing.colour_of(algo, study.algos)
        assert len({str(line._dash_pattern) for line in lines}) == 3  # told apart without colour
    gate = next(a for a in panel(study, figures.gate).lines if a.get_gid() == "median")
    expected = np.median(study.column("ppo", "diff") / study.column("ppo", "diff_scale"), axis=0)
    np.testing.assert_allclose(gate.get_ydata(), expected)


def test_few_seeds_are_drawn_and_have_no_band_and_many_have_one(study, tmp_path):
    few = figures.panel(study, figures.value)
    assert len(with_gid(few, "seed")) == 9
    assert with_gid(few, "band") == []
    assert "thin lines" in figures.about(study)
    many = made_up_study(tmp_path, seeds=summary.FEWEST, rounds=5)
    drawn = figures.panel(many, figures.value)
    assert with_gid(drawn, "seed") == []
    points = with_gid(drawn, "band")[0].get_paths()[0].vertices
    first, third = np.quantile(many.column("ppo", "value_behaviour"), [0.25, 0.75], axis=0)
    assert (points[:, 1].min(), points[:, 1].max()) == (pytest.approx(first.min()), pytest.approx(third.max()))
    assert "quartile" in figures.about(many)


@pytest.mark.parametrize("draw", [d for panels in figures.SHEETS.values() for d in panels], ids=lambda d: d.__name__)
def test_axes_are_labelled_and_names_stand_beside_their_curves(study, draw):
    figure = figures.panel(study, draw)
    (axes,) = figure.axes
    assert axes.get_ylabel()
    assert axes.get_xlabel() or draw is figures.pairs
    figure.draw_without_rendering()
    boxes = [name.get_window_extent() for name in with_gid(figure, "name")]
    assert (len(boxes) >= 3) != (draw is figures.pairs)
    right = axes.get_window_extent().x1
    for box in boxes:
        assert box.x0 > right, "a name is not beside the curves"
        assert box.x1 <= figure.bbox.x1 + 1
    boxes.sort(key=lambda box: box.y0)
    for lower, upper in itertools.pairwise(boxes):
        assert upper.y0 >= lower.y1 - 2, "two names overlap"


def test_snapshots_show_one_target_and_share_a_scale(study):
    seed = figures.shown_seed(study)
    run = study.trajectory.member(study.index("sv-dynamic", seed))
    first, last = maps.longest_hold(run.accepted)
    np.testing.assert_array_equal(run.target[first], run.target[last])
    figure = maps.snapshots(study, seed)
    images = [[i for i in axes.images if np.ma.asarray(i.get_array()).count() > 100] for axes in figure.axes[:8]]
    heat = [row[0] for row in images]
    truth = four_rooms_mdp.as_grid(solve.state_value(study.mdp, run.target[first]))
    for place in (0, 1):
        shown = np.ma.filled(heat[place].get_array(), np.nan)
        assert np.nanmax(np.abs(shown - truth)[shown != 0]) < 1e-9
    assert len({i.get_clim() for i in heat[:4]}) == 1
    low, high = heat[4].get_clim()
    assert low == -high


@pytest.mark.parametrize(
    ("accepted", "hold"),
    [
        ([0, 0, 1, 0, 0, 0, 1, 0], (3, 6)),
        ([0, 0, 0, 0], (0, 3)),
        ([1, 1, 1], (0, 0)),
        ([1, 0, 0, 0], (1, 3)),
    ],
)
def test_longest_hold(accepted, hold):
    assert maps.longest_hold(np.asarray(accepted, bool)) == hold


def test_arrows_are_as_long_as_actions_are_likely():
    mdp = four_rooms_mdp.four_rooms()
    best = solve.optimal(mdp).pi
    axes = Figure().subplots()
    drawn = maze.arrows(axes, best)
    assert isinstance(drawn, Quiver)
    goal = four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)
    assert len(drawn.U) == (np.delete(best, goal, axis=0) >= maze.SMALLEST_ARROW).sum()
    tie = four_rooms_mdp.state_index(7, 1)
    policy = np.full_like(best, 0.0)
    policy[:, 1] = 1.0
    policy[tie] = [0.75, 0.25, 0.0, 0.0]
    axes = Figure().subplots()
    drawn = maze.arrows(axes, policy)
    here = (drawn.X == 1) & (drawn.Y == 7)
    np.testing.assert_allclose(np.hypot(drawn.U, drawn.V)[here], 0.62 * np.array([0.75, 0.25]))
    assert drawn.V[here][0] < 0  # up is towards row 0


def test_maps_are_the_right_way_up():
    axes = Figure().subplots()
    values = np.zeros(104)
    values[four_rooms_mdp.state_index(1, 3)] = 1.0
    image = maze.heat(axes, values, maze.Normalize(0, 1))
    assert isinstance(image, AxesImage)
    assert np.ma.filled(image.get_array(), 0.0)[1, 3] == 1.0
    bottom, top = axes.get_ylim()
    assert bottom > top
    signed = Figure().subplots()
    maze.signed(signed, values - 2.0 * (np.arange(104) == 0), 2.0)
    plus, minus = signed.collections
    assert plus.get_offsets().tolist() == [[3.0, 1.0]]
    assert minus.get_offsets().tolist() == [[1.0, 1.0]]


def test_pairs_join_every_seed_and_the_doorway_has_an_optimum(study):
    assert [len(c.get_offsets()) for c in panel(study, figures.pairs).collections] == [3, 3, 3]
    (optimal,) = with_gid(figures.panel(study, figures.route), "optimal")
    assert optimal.get_ydata()[0] == pytest.approx(0.0122, abs=5e-4)


def test_saved_figures_and_page_stand_alone(study, tmp_path):
    page.save_figure(maps.optimal_policy(study.mdp), tmp_path, "optimal")
    assert (tmp_path / "optimal.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "optimal.svg").read_text()[:2000]
    sheet = page.Page("A <title>")
    sheet.figure([page.themed(figures.panel(study, figures.value), "value")], 'the "value", $V(s_0)$')
    with sheet.folded("More"):
        sheet.table([{"x": 0.123456, "y": "<b>"}])
    sheet.write(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert 'aria-label="the &quot;value&quot;, V(s_0)"' in text
    assert "<math><mi>V</mi>" in text
    assert "prefers-color-scheme: dark" in text
    assert "<summary>More</summary>" in text
    assert "&lt;b&gt;" in text
    assert "0.1235" in text
    assert "http:" not in text
    assert "https:" not in text
    assert "<script" not in text


def test_drawings_take_the_colours_of_the_page_and_keep_their_numbers(study):
    drawn = page.themed(figures.panel(study, figures.route), "route")
    assert re.findall("#[0-9a-f]{6}", drawn) == []
    for place in range(3):
        assert f"var(--c{place})" in drawn
    assert "optimal 0.012" in drawn  # coordinates are rounded, words are not
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert all(each.startswith("route-") for each in ids)
    for used in re.findall(r'(?:url\(|href=")#([^")]+)', drawn):
        assert used in ids
