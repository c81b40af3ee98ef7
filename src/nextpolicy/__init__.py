"""Approximate Next Policy Sampling: PPO, Stable-Value PPO and their exact theory in JAX."""

from nextpolicy._version import __version__ as __version__
from nextpolicy.core.gate import GateParams as GateParams
from nextpolicy.run.api import Run as Run
from nextpolicy.run.api import load as load
from nextpolicy.run.api import resume as resume
from nextpolicy.run.api import train as train
