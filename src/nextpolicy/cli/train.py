"""`nextpolicy train ENV`: train a population."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextpolicy.cli.parsing import Parser, UsageError, join_processes

if TYPE_CHECKING:
    from nextpolicy.run.callbacks import Callback
    from nextpolicy.run.run import Run


# Fields that `--help` lists; `--help-all` lists all.
COMMON = ("algo", "total_env_steps", "seeds", "sweep", "num_envs", "learning_rate", "env_options", "init_from")


def parser() -> Parser:
    """The parser of the command, with one option for each field of the configuration."""
    from nextpolicy.config import FIELDS
    from nextpolicy.config.presets import DEFAULT, PRESETS, READINGS

    made = Parser(
        prog="nextpolicy train",
        description="Train a population as one program: algorithms x swept values x seeds on one environment.",
        usage="nextpolicy train ENV [--algo ALGO,...] [--seeds N] [--total-env-steps N] [options]",
        example="nextpolicy train gymnax/CartPole-v1 --algo ppo,sv-dynamic --seeds 4",
        common=COMMON,
    )
    made.add_argument("env", help=FIELDS["env"].help)
    text = f"{' or '.join(READINGS)}, the readings of the paper's settings, on its environments (default corrected)"
    text = f"Settings to start from: {text}; or, on any environment, {', '.join(PRESETS)}."
    made.add_argument("--preset", help=text)
    made.add_argument("--out", help="Run folder; default runs/<env>-<algo>-<time>.")
    made.add_argument("--quiet", action="store_true", help="Show no progress.")
    text = "Print the settings, members, rounds, memory and expected time, from two compiled rounds; train nothing."
    made.add_argument("--dry-run", action="store_true", help=text)
    add_callbacks(made)
    made.add_processes()
    about = "Defaults are those of the preset `default`; `nextpolicy train ENV --dry-run` prints the values for ENV."
    made.add_fields(DEFAULT, about, skip=("env",), several=("env_options", "sweep"))
    return made


def main(arguments: Sequence[str]) -> None:
    """Train, and print the scores."""
    from nextpolicy.config import FIELDS

    options = parser().parse(arguments)
    fields = {k: v for k, v in vars(options).items() if k in FIELDS and k != "env"}
    join_processes(options)
    from nextpolicy.run import api

    if options.dry_run:
        print(*api.dry_run(options.env, preset=options.preset, **fields), sep="\n")
        return
    where = {"preset": options.preset, "out": options.out, "quiet": options.quiet}
    print_scores(api.train(options.env, **where, callback=callback_of(options), **fields))


def callback_of(options: argparse.Namespace) -> Callback | None:
    """The callback of `--stop-at-return` and `--evaluate-every`."""
    from nextpolicy.run.callbacks import EvaluateEvery, all_of, stop_at_return

    stop = None if options.stop_at_return is None else stop_at_return(options.stop_at_return)
    every, episodes = options.evaluate_every, options.evaluate_episodes
    if every is None and episodes is not None:
        raise UsageError("--evaluate-episodes: expected --evaluate-every with it")
    return all_of(None if every is None else EvaluateEvery(every, 32 if episodes is None else episodes), stop)


def add_callbacks(parser: Parser) -> None:
    """Options of training that are not fields of the configuration."""
    text = "Stop once the mean return of every member over 10 rounds is at least R; resume continues."
    parser.add_argument("--stop-at-return", type=float, metavar="R", help=text)
    text = "Evaluate the target policies every N steps, write evaluations.csv, and keep the best policy of each member."
    parser.add_argument("--evaluate-every", type=float, metavar="N", help=text)
    parser.add_argument("--evaluate-episodes", type=int, metavar="E", help="Episodes of each evaluation; default 32.")


def print_scores(run: Run) -> None:
    """Print the scores of all members, in process 0 only."""
    import jax

    if jax.process_index() == 0:
        print(run.scores().to_string(index=False))
        print(f"run: {run.path}")
