"""Compiler options and flags that save tests time, where this version of XLA has them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any

_JAX_0_10 = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)  # later versions refuse the option below

# Few fusions: less time to compile, a little slower to run.
FEW_FUSIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if _JAX_0_10 else {}
FLAGS = "--xla_cpu_use_fusion_emitters=false" if _JAX_0_10 else ""  # the same for XLA_FLAGS
# A quarter of the time to compile; for what is compared to a tolerance.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, **FEW_FUSIONS}


def abstract_gpu() -> AbstractContextManager[Any]:
    """Where kernels lower for a GPU that is not there; JAX 0.11 asks which GPU it would be."""
    if _JAX_0_10:
        return nullcontext()
    import jax  # not above: `faults/count.py` sets JAX's flags first

    device = jax.sharding.AbstractDevice("NVIDIA H200", 132, "gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))
