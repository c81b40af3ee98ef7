"""Approximate Next Policy Sampling: PPO, Stable-Value PPO and their exact theory in JAX."""

from nextpolicy._version import __version__ as __version__
