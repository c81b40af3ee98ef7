"""Compiler options and flags that save tests time, where this version of XLA has them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

_HAS_EMITTERS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)  # later versions refuse the option

# Few fusions: less time to compile, a little slower to run.
FEW_FUSIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if _HAS_EMITTERS else {}
FLAGS = "--xla_cpu_use_fusion_emitters=false" if _HAS_EMITTERS else ""  # the same for XLA_FLAGS
# A quarter of the time to compile; for what is compared to a tolerance.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, **FEW_FUSIONS}
