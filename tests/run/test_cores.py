"""From Python, too, a population trains on all cores; where that is too late, one line says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .helpers import environment

pytestmark = pytest.mark.quick_compilation

CORES = len(os.sched_getaffinity(0))
SCRIPT = """
import sys
import jax
import nextpolicy

if sys.argv[2] == "late":
    jax.numpy.zeros(1)
fields = dict(num_envs=4, rollout_length=8, minibatch_size=16, hidden=8, total_env_steps=64)
run = nextpolicy.train("probe/action", seeds=2, **fields, out=sys.argv[1])
print(len(jax.devices()), len(run.metrics))
"""


@pytest.mark.skipif(CORES == 1, reason="needs two cores")
@pytest.mark.parametrize("when", ["early", "late"])
def test_python_uses_all_cores_or_says_so(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), when]
    done = subprocess.run(command, env=environment(XLA_FLAGS=""), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    devices, rows = map(int, done.stdout.split())
    assert rows == 4
    assert devices == (CORES if when == "early" else 1)
    line = f"training on 1 of {CORES} cores because JAX was already initialised; to use all, call `jax.config"
    assert (line in done.stderr) == (when == "late")
