"""One metric of one run as a figure: `Run.plot`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from nextpolicy.config import ConfigError, nearest
from nextpolicy.report.drawing import labelled, legend, literal, name_ends, names_fit, plain
from nextpolicy.report.figures import WIDTH, band
from nextpolicy.report.runs import KEYS
from nextpolicy.report.text import count


def plot(metrics: pd.DataFrame, metric: str, title: str) -> Figure:
    """Mean over seeds of a metric, with its 95 % interval, against environment steps, one curve per variant."""
    known = [name for name in metrics if name not in KEYS and metrics[name].dtype.kind in "biuf"]
    if metric not in known:
        raise ConfigError(f"metric: expected one of {', '.join(known)}, got {metric!r}{nearest(str(metric), known)}")
    figure = Figure(figsize=(2 * WIDTH, WIDTH), layout="constrained")
    axes = figure.add_subplot()
    variants = list(dict.fromkeys(metrics["variant"]))
    steps = int(metrics["env_steps"].iloc[0] // (metrics["round"].iloc[0] + 1))
    for variant in variants:
        own = metrics[metrics["variant"] == variant]
        band(axes, own.pivot(index="round", columns="member", values=metric).astype(float), variants, variant, steps)
    seeds = int(metrics.groupby("variant")["member"].nunique().max())
    axes.set_title(literal(f"{title} ({count(seeds, 'seed')})"), fontsize=10)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(literal(metric))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    plain(axes, "y")
    if names_fit(variants):
        name_ends(axes, list(axes.lines))
    else:
        legend(figure, labelled([axes]))
    return figure
