"""`Run.plot`: one metric of one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nextpolicy
from nextpolicy.config import ConfigError
from nextpolicy.report import figures
from nextpolicy.report.comparable import load_all

from .synthetic import lively, write_run


def test_a_curve_for_each_variant_at_its_mean(tmp_path: Path) -> None:
    run = nextpolicy.load(write_run(tmp_path / "ant", "brax/ant", rounds=30, columns=lively(0)))
    figure = run.plot()
    (axes,) = figure.axes
    curves = {line.get_label(): line for line in axes.lines}
    assert set(curves) == {"ppo", "sv-static", "sv-dynamic"}
    wide = run.metrics[run.metrics["variant"] == "ppo"].pivot(index="round", columns="member", values="episode_return")
    np.testing.assert_allclose(curves["ppo"].get_ydata(), wide.mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(curves["ppo"].get_xdata(), (np.arange(30) + 1) * run.config.batch_size)
    assert axes.get_ylabel() == "episode_return"
    assert axes.get_title() == "brax/ant (3 seeds)"
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_one_seed_is_not_seeds(tmp_path: Path) -> None:
    run = nextpolicy.load(write_run(tmp_path / "ant", "brax/ant", seeds=1))
    assert run.plot().axes[0].get_title() == "brax/ant (1 seed)"
    one = load_all([tmp_path / "ant"])
    assert figures._title("brax/ant", one) == "brax/ant (1 seed)"
    write_run(tmp_path / "more", "brax/ant", algo=("sv-static",), seeds=(1, 2))
    assert figures._title("brax/ant", load_all([tmp_path])) == "brax/ant (1–3 seeds)"


def test_any_metric_and_a_hint_for_unknown_ones(tmp_path: Path) -> None:
    run = nextpolicy.load(write_run(tmp_path / "ant", "brax/ant"))
    assert len(run.plot("accepted").axes[0].lines) == 3
    for name in ("entropie", "variant"):
        with pytest.raises(ConfigError, match=r"metric: expected one of .*entropy.*, got "):
            run.plot(name)
    with pytest.raises(ConfigError, match="did you mean 'entropy'"):
        run.plot("entropie")
