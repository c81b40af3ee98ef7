"""`Run`: a trained population, read from its run folder."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
import pandas as pd

from nextpolicy import runfiles, scores
from nextpolicy.config import MAX_SEED, ConfigError, Member, TrainConfig, shown, whole
from nextpolicy.envs.base import is_host_env
from nextpolicy.loop.evaluate import evaluator
from nextpolicy.nets import kinds
from nextpolicy.run import arrays, checkpoint, evaluations
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job
from nextpolicy.run.policy import Policy
from nextpolicy.run.restart import check_config, check_state
from nextpolicy.settings import printable
from nextpolicy.types import PolicySnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTEMPTS = 5  # to read a checkpoint while training may replace it
MAX_EPISODES = 1_000_000  # per member and evaluation; also the maximum of num_envs


class Run:
    """A trained population: its configuration, metrics, scores and policies.

    `make` builds the environment and the networks; it is called on first use.
    """

    def __init__(self, folder: RunFolder, make: Callable[[], Job]) -> None:
        self._folder, self._make = folder, make

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status['state']}, members={len(self.members)})"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @cached_property
    def config(self) -> TrainConfig:
        """All settings; `run.config.flat()` has them by name."""
        return self._folder.config()

    @cached_property
    def _job(self) -> Job:
        return self._make()

    @property
    def members(self) -> list[Member]:
        """Algorithm, seed and swept values of each member, in the order of their indices."""
        return self.config.members()

    @property
    def status(self) -> dict[str, Any]:
        """`state` (running, finished, stopped or failed), `rounds_done` and, after a failure, the reason."""
        return self._folder.status()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per member and round. Raises if the metrics of a round are missing or damaged.

        If fields were swept, `sweep_<field>` is the member's value, e.g. `sweep_learning_rate`.
        """
        damage = self._damage()
        if damage:
            raise RunError(
                f"run: {self.path}: {damage[0]}; `nextpolicy resume {shlex.quote(str(self.path))}` recomputes them "
                "from a checkpoint if possible; run.partial_metrics() returns the others"
            )
        return self._with_swept(runfiles.read_metrics(self.path))

    def partial_metrics(self) -> pd.DataFrame:
        """The metrics without missing and damaged parts."""
        return self._with_swept(runfiles.read_metrics(self.path, without=self._damage()))

    def _with_swept(self, frame: pd.DataFrame) -> pd.DataFrame:
        """`frame`, which has a column `member`, with the members' values of the swept fields."""
        members = [dict(member.overrides) for member in self.members]
        if frame.empty:
            return frame
        values = {f"sweep_{name}": [each[name] for each in members] for name in self.config.run.sweep}
        return frame.assign(**{name: np.asarray(column)[frame["member"]] for name, column in values.items()})

    def _damage(self) -> list[runfiles.Damage]:
        check_config(self._folder)
        return runfiles.metrics_damage(self.path, self.status["state"], self.config.num_rounds)

    def scores(self, allow_gaps: bool = False) -> pd.DataFrame:
        """Mean return of each member's episodes that ended in the last 10 % of its steps, or of its steps so far.

        Raises if metrics are missing or damaged; with `allow_gaps`, only if this affects these last steps.
        """
        self._folder.check_whole()
        done = runfiles.expected_rounds(self.path, self.status["state"], self.config.num_rounds)
        first = (1 - scores.SCORE_SHARE) * done
        late = [d for d in self._damage() if d.last + 1 > first]
        frame = self.partial_metrics() if allow_gaps and not late else self.metrics
        if frame.empty:
            raise RunError(f"run: {self.path} has no metrics yet")
        late_rows = scores.late_rows(frame, done * self.config.batch_size)
        rows = [
            (i, m.variant, m.seed, scores.member_score(late_rows[late_rows["member"] == i]))
            for i, m in enumerate(self.members)
        ]
        return self._with_swept(pd.DataFrame(rows, columns=["member", "variant", "seed", "score"]))

    def plot(self, metric: str = "episode_return") -> Figure:
        """A metric against environment steps: mean over seeds with its 95 % interval, one curve per variant.

        Returns a matplotlib figure: `run.plot("entropy").savefig("entropy.png")`.
        """
        from nextpolicy.report.plot import plot

        return plot(self.metrics, metric, self.config.environment.env)

    def snapshot(self, policy: str = "target", member: int = 0) -> PolicySnapshot:
        """Parameters and statistics of a member's policy at the newest intact checkpoint.

        `policy` is "target", "behaviour" or, if the run was evaluated during training, "best".
        """
        if policy not in ("target", "behaviour", "best"):
            raise ConfigError(f"policy: expected 'target', 'behaviour' or 'best', got {policy!r}")
        member = whole("member", member, 0, len(self.members) - 1)
        if policy == "best":
            return self._best(member)
        agent = jax.tree.map(lambda x: x[member], self._agents)
        chosen = agent.target if policy == "target" else self._job.setup.algorithm.behaviour(agent.learner)
        return cast(PolicySnapshot, chosen)

    def _best(self, member: int) -> PolicySnapshot:
        self._folder.check_whole()
        file = self.path / runfiles.BEST / f"member-{member:05d}.npz"
        if not file.is_file():
            raise RunError(f"run: {self.path} has no best policy of member {member}; train with --evaluate-every")
        template = arrays.of_one(self._job.template().agent.target)
        about = {"member": member}
        if (self.path / runfiles.EVALUATIONS).is_file():  # a damaged one may have been moved away
            about["env_steps"] = evaluations.steps_of_best(self.path, member)
        return cast(PolicySnapshot, arrays.load(file, template, **about))

    def policy(self, policy: str = "target", member: int = 0) -> Policy:
        """A member's policy as a function `policy(obs, key=None)`; see `Policy`."""
        job, spec = self._job, self._job.setup.spec
        networks = kinds.make(self.config, dataclasses.replace(spec, obs_table=None), *self._modules)
        arrange = job.env.arrange if is_host_env(job.env) else None
        return Policy(spec, networks, self.snapshot(policy, member), arrange)

    def export(self, folder: str | Path, policy: str = "target", member: int = 0, onnx: bool = False) -> Path:
        """Write a member's policy for use without this package into a new or empty folder, and return its path.

        The folder has the arrays, a description in JSON and a loader that needs only NumPy; with `onnx`, also an ONNX
        model.
        """
        from nextpolicy.run.export import export

        return export(self, folder, policy, member, onnx)

    def evaluate(
        self,
        episodes: int = 100,
        policy: str = "target",
        greedy: bool = False,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Evaluate every member over `episodes` episodes; one row per member.

        Each of the `num_envs` environments (default: one per episode) runs the same number of episodes, so that short
        episodes are not over-represented.
        """
        return pd.DataFrame(self.evaluations(range(len(self.members)), episodes, policy, greedy, num_envs, seed))

    def evaluations(
        self,
        members: Iterable[int],
        episodes: int = 100,
        policy: str = "target",
        greedy: bool = False,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """The rows of `evaluate`, computed lazily, so that a caller may stop between members."""
        episodes = whole("episodes", episodes, 1, MAX_EPISODES)
        if not isinstance(greedy, bool | np.bool_):
            raise ConfigError(f"greedy: expected true or false, got {shown(greedy)}")
        environments = episodes if num_envs is None else whole("num_envs", num_envs, 1, MAX_EPISODES)
        seed = whole("seed", seed, 0, MAX_SEED)
        if episodes % environments:
            raise ConfigError(f"episodes: expected a multiple of num_envs, {environments}, got {episodes}")
        job, each = self._job, episodes // environments
        evaluate = evaluator(job.env, job.setup.networks, num_envs=environments, episodes=each, greedy=bool(greedy))
        described = self.members
        for i in members:
            result = jax.device_get(evaluate(self.snapshot(policy, i), jax.random.fold_in(jax.random.key(seed), i)))
            yield {
                "member": i,
                "variant": described[i].variant,
                "seed": described[i].seed,
                "policy": policy,
                "episodes": int(result.finished.sum()),
                "mean": float(result.returns.mean()),
                "std": float(result.returns.std()),
                "length": float(result.lengths.mean()),
                "unfinished": int((~result.finished).sum()),
            }

    @property
    def _modules(self) -> tuple[Any, Any]:
        return self._job.actor, self._job.critic

    @cached_property
    def _agents(self) -> Any:
        """The agents of all members, leaves [M, ...], from the newest intact checkpoint."""
        self._folder.check_whole()
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), self._job.template())
        check_config(self._folder)
        check_state(self._folder)
        folder = self._folder.checkpoints
        for _ in range(ATTEMPTS):
            said: list[str] = []
            there = checkpoint.list_rounds(folder)
            rounds = checkpoint.newest_whole(folder, self.config.num_rounds, said.append)
            if rounds != self.config.num_rounds and self.status["state"] == "finished":
                what = said[0].partition(";")[0] if said else f"checkpoint {self.config.num_rounds} is missing"
                command = f"`nextpolicy resume {shlex.quote(str(self.path))}`"
                raise RunError(
                    f"run: {self.path}: {what}; {command} continues from an earlier checkpoint, if there is one"
                )
            try:
                if rounds is not None:
                    agents = checkpoint.restore(folder, rounds, template).agent
                    print(*map(printable, said), sep="\n", end="\n" * bool(said), file=sys.stderr)
                    return agents
            except (
                Exception
            ) as error:  # training may have deleted it; Orbax, for old checkpoints, raises many types of errors
                if checkpoint.list_rounds(folder) == there:
                    raise RunError((str(error).strip().splitlines() or [type(error).__name__])[0]) from error
            if checkpoint.list_rounds(folder) == there:
                break  # otherwise training has replaced it: try again
        because = f": {said[0].splitlines()[0]}" if said else ""
        raise RunError(f"run: {self.path} has no intact checkpoint yet; resume it first{because}")
