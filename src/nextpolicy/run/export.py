"""`Run.export`: what a policy of a run is made of, handed to `nextpolicy.export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nextpolicy._version import __version__
from nextpolicy.config import whole
from nextpolicy.envs.base import is_host_env
from nextpolicy.export import describe, write
from nextpolicy.run import evaluations
from nextpolicy.run.folder import RunError

if TYPE_CHECKING:
    from nextpolicy.run.run import Run


def export(run: Run, folder: str | Path, policy: str, member: int, onnx: bool) -> Path:
    """Write a policy into a new or empty folder; see `Run.export`."""
    path, job = write.check(folder, onnx), run._job
    if job.actor is not None:
        raise RunError(
            f"export: expected a network that nextpolicy builds, got the actor {type(job.actor).__name__}; "
            "serialise run.policy(...).apply with jax.export"
        )
    member = whole("member", member, 0, len(run.members) - 1)
    snapshot, who = run.snapshot(policy, member), run.members[member]
    made_by = {
        "nextpolicy": __version__,
        "algo": who.algo,
        "sweep": dict(who.overrides),
        "seed": who.seed,
        "member": member,
        "policy": policy,
        "env_steps": _env_steps(run, policy, member),
    }
    arrange = job.env.arrange if is_host_env(job.env) else None
    description, arrays = describe.describe(job.setup.spec, run.config.net, snapshot, arrange, made_by)
    write.write(path, description, arrays, onnx)
    return path


def _env_steps(run: Run, policy: str, member: int) -> int:
    """Environment steps that the member had taken when its policy was saved."""
    if policy == "best":
        return evaluations.steps_of_best(run.path, member)
    return int(run._agents.round[member]) * run.config.batch_size
