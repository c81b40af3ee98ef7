"""Approximate Next Policy Sampling: PPO, Stable-Value PPO and their exact theory in JAX.

Public names are imported on first use, so importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nextpolicy._version import __version__ as __version__

if TYPE_CHECKING:
    from nextpolicy.criteria.stable_values import GateParams as GateParams
    from nextpolicy.run.api import load as load
    from nextpolicy.run.api import resume as resume
    from nextpolicy.run.api import train as train
    from nextpolicy.run.callbacks import BlockEnd as BlockEnd
    from nextpolicy.run.callbacks import EvaluateEvery as EvaluateEvery
    from nextpolicy.run.callbacks import stop_at_return as stop_at_return
    from nextpolicy.run.run import Run as Run

__all__ = ["BlockEnd", "EvaluateEvery", "GateParams", "Run", "__version__", "load", "resume", "stop_at_return", "train"]

_HOMES = {
    "BlockEnd": "nextpolicy.run.callbacks",
    "EvaluateEvery": "nextpolicy.run.callbacks",
    "GateParams": "nextpolicy.criteria.stable_values",
    "Run": "nextpolicy.run.run",
    "load": "nextpolicy.run.api",
    "resume": "nextpolicy.run.api",
    "stop_at_return": "nextpolicy.run.callbacks",
    "train": "nextpolicy.run.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nextpolicy' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
