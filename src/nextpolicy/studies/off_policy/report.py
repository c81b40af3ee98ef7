"""Table, figures and page of the bias of the advantage estimators."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from nextpolicy.report.drawing import name_ends, plain
from nextpolicy.report.palette import COLOURS
from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page
from nextpolicy.studies.off_policy import bias

_PANELS = {
    "error": "mean error, multiples of the mean advantage",
    "relative": "the same between actions of a state",
    "sign": "share of estimates with the wrong sign",
}


def write(path: Path, table: pd.DataFrame) -> Path:
    """bias.csv, figures/ and report.html."""
    write_whole(path / "bias.csv", table.to_csv(index=False, float_format="%.5g").encode())
    out = page.Page("Bias of off-policy advantages on Four Rooms")
    out.text(
        "The critic is exact here, so all error is the estimator's. The behavioural policy $beta$ has moved away from "
        "the target $pi$ by the drift $KL(pi || beta)$. Expectations are exact, over infinite trajectories of $beta$."
    )
    for number, line in enumerate(headlines(table), 1):
        out.verdict(f"{number}. {line}")
    for share, mine in table.groupby("share"):
        name = f"bias-{share:g}"
        figure = draw(mine)
        page.save_figure(figure, path / "figures", name)
        out.figure([page.themed(figure, name)], f"Target with {100 * share:g} % of the best value from the start.")
    out.write(path / "report.html")
    return path / "report.html"


def names(table: pd.DataFrame) -> pd.Series:
    """The name of each row's estimator; the bound on the ratio only of `vtrace`, which alone has one."""
    bounded = table["kind"] + ", rho_max " + table["rho_max"].map("{:g}".format)
    return table["kind"].where(table["kind"] != "vtrace", bounded)


def draw(table: pd.DataFrame) -> Figure:
    """One panel per kind of error over the drift, one curve per estimator."""
    figure = Figure(figsize=(11.5, 3.4), layout="constrained")
    for axes, (column, words) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        lines = []
        for i, (name, one) in enumerate(table.assign(name=names(table)).groupby("name", sort=False)):
            style = "-" if str(name).startswith("vtrace") else "--"
            lines += axes.plot(
                one["kl"], one[column], style, color=COLOURS[i % len(COLOURS)], label=str(name), gid=column
            )
        axes.set(xscale="log", xlabel="drift, KL(target || behaviour)", title=words)
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=8)
        plain(axes, "both")
        if column == "sign":
            name_ends(axes, lines)
    return figure


def headlines(table: pd.DataFrame) -> list[str]:
    """The main results, in words: at the drift nearest to .01, the mean over targets."""
    drift = min(bias.DRIFTS, key=lambda x: abs(x - 0.01))
    at = table[(table["kl"] - drift).abs() < 1e-12]
    means = at.assign(name=names(at)).groupby("name", sort=False)[list(_PANELS)].mean()
    return [
        f"{name}: off by {row['error']:.2f} times the advantage at a drift of {drift:.2g}, by {row['relative']:.2f} "
        f"between actions; {100 * row['sign']:.0f} % of the signs are wrong"
        for name, row in means.iterrows()
    ]
