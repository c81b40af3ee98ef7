"""What the figures show, read from their artists."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.quiver import Quiver

from nextpolicy.studies import page
from nextpolicy.studies.four_rooms import figures, maze
from nextpolicy.tabular import four_rooms_mdp, solve

from .helpers import made_up_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_up_study(tmp_path_factory.mktemp("study"))


def with_gid(figure, gid):
    return [a for axes in figure.axes for a in axes.get_children() if a.get_gid() == gid]


@pytest.mark.parametrize("seed", [0, 2])
def test_dots_are_the_accepted_rounds(study, seed):
    figure = figures.learning_curves(study, seed)
    dots = with_gid(figure, "target-updates")
    assert len(dots) == 4
    accepted = np.flatnonzero(study.trajectory.accepted[study.index("sv-dynamic", seed)])
    assert 0 < len(accepted) < study.rounds
    for line in dots:
        np.testing.assert_array_equal(line.get_xdata(), accepted)
    values = study.column("sv-dynamic", "value_behaviour")[seed][accepted]
    np.testing.assert_allclose(dots[0].get_ydata(), values)


def test_threshold_and_optimum_lie_where_they_should(study):
    figure = figures.learning_curves(study, 0)
    (threshold,) = with_gid(figure, "threshold")
    assert list(threshold.get_ydata()) == [study.config.criterion.delta_v] * 2 == [0.1, 0.1]
    assert threshold.axes is figure.axes[3]
    (optimal,) = with_gid(figure, "optimal")
    assert optimal.get_ydata()[0] == pytest.approx(0.8305, abs=1e-4)


def test_curves_are_medians_inside_their_bands(study):
    figure = figures.learning_curves(study, 0)
    names = ("value_behaviour", "msve_next_alive", "tv_visitation_alive")
    for axes, name in zip(figure.axes, names):
        lines = [a for a in axes.lines if a.get_gid() == "median"]
        assert [line.get_label() for line in lines] == [figures.NAMES[a] for a in study.algos]
        for line, algo in zip(lines, study.algos):
            np.testing.assert_allclose(line.get_ydata(), np.median(study.column(algo, name), axis=0))
        assert len({str(line._dash_pattern) for line in lines}) == 3  # told apart without colour
    gate = next(a for a in figure.axes[3].lines if a.get_gid() == "median")
    expected = np.median(study.column("ppo", "diff") / study.column("ppo", "diff_scale"), axis=0)
    np.testing.assert_allclose(gate.get_ydata(), expected)
    bands = [a for a in figure.axes[0].collections if a.get_gid() == "band"]
    points = bands[0].get_paths()[0].vertices
    first, third = np.quantile(study.column("ppo", "value_behaviour"), [0.25, 0.75], axis=0)
    assert (points[:, 1].min(), points[:, 1].max()) == (pytest.approx(first.min()), pytest.approx(third.max()))
    assert len(with_gid(figure, "seed")) == 9


def test_every_plot_axis_is_labelled(study):
    for draw in figures.all_figures(study).values():
        for axes in draw().axes:
            if axes.lines and axes.get_label() != "<colorbar>":
                assert axes.get_ylabel()
                assert axes.get_xlabel() or axes.get_xticklabels()


def test_snapshots_show_one_target_and_share_a_scale(study):
    seed = figures.shown_seed(study)
    run = study.trajectory.member(study.index("sv-dynamic", seed))
    first, last = figures.longest_hold(run.accepted)
    np.testing.assert_array_equal(run.target[first], run.target[last])
    figure = figures.snapshots(study, seed)
    images = [[i for i in axes.images if np.ma.asarray(i.get_array()).count() > 100] for axes in figure.axes[:8]]
    heat = [row[0] for row in images]
    truth = four_rooms_mdp.as_grid(solve.state_value(study.mdp, run.target[first]))
    for place in (0, 4):
        shown = np.ma.filled(heat[place].get_array(), np.nan)
        assert np.nanmax(np.abs(shown - truth)[shown != 0]) < 1e-9
    assert len({i.get_clim() for i in (heat[0], heat[2], heat[4], heat[6])}) == 1
    low, high = heat[3].get_clim()
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
    assert figures.longest_hold(np.asarray(accepted, bool)) == hold


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


def test_rooms_figure_pairs_every_seed(study):
    figure = figures.rooms(study)
    final = figure.axes[2]
    assert [len(c.get_offsets()) for c in final.collections] == [3, 3, 3]
    (optimal,) = with_gid(figure, "optimal")
    assert optimal.get_ydata()[0] == pytest.approx(0.0122, abs=5e-4)


def test_examined_rounds():
    assert figures.examined_rounds(195) == figures.EXAMINED
    assert figures.examined_rounds(1) == (0,)
    assert max(figures.examined_rounds(50)) == 49


def test_saved_figures_and_page_stand_alone(study, tmp_path):
    png = page.save_figure(figures.optimal_policy(study.mdp), tmp_path, "optimal")
    assert png.startswith(b"\x89PNG")
    assert (tmp_path / "optimal.png").read_bytes() == png
    assert "<svg" in (tmp_path / "optimal.svg").read_text()[:2000]
    sheet = page.Page("A <title>")
    sheet.figure(png, 'the "optimal" policy')
    sheet.table([{"x": 0.123456, "y": "<b>"}])
    sheet.write(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "data:image/png;base64," in text
    assert "prefers-color-scheme: dark" in text
    assert "&lt;b&gt;" in text
    assert "0.1235" in text
    assert "http" not in text
    assert "<script" not in text
