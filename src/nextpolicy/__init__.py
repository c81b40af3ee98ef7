"""Approximate Next Policy Sampling: PPO, Stable-Value PPO and their exact theory in JAX.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nextpolicy._version import __version__ as __version__

if TYPE_CHECKING:
    from nextpolicy.criteria.stable_values import GateParams as GateParams
    from nextpolicy.run.api import load as load
    from nextpolicy.run.api import resume as resume
    from nextpolicy.run.api import train as train
    from nextpolicy.run.run import Run as Run

__all__ = ["GateParams", "Run", "__version__", "load", "resume", "train"]


class _Lazy:
    """A public name of the package: an attribute that no assignment replaces.

    Importing the subpackage `nextpolicy.train` would otherwise put it in the place of the function of that name;
    `from nextpolicy.train import update` still finds the subpackage.
    """

    def __init__(self, home: str, name: str) -> None:
        self.home, self.name = home, name

    def __get__(self, package: Any, owner: Any = None) -> Any:
        return getattr(import_module(self.home), self.name)

    def __set__(self, package: Any, value: Any) -> None:
        return


class _Package(ModuleType):
    GateParams = _Lazy("nextpolicy.criteria.stable_values", "GateParams")
    Run = _Lazy("nextpolicy.run.run", "Run")
    load = _Lazy("nextpolicy.run.api", "load")
    resume = _Lazy("nextpolicy.run.api", "resume")
    train = _Lazy("nextpolicy.run.api", "train")

    def __dir__(self) -> list[str]:
        return sorted(__all__)


sys.modules[__name__].__class__ = _Package
