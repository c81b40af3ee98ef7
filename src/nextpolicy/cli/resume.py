"""`nextpolicy resume RUN`: continue a run."""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.cli.parsing import Parser, join_processes
from nextpolicy.cli.train import add_callbacks, callback_of, print_scores


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(prog="nextpolicy resume", description="Continue a run from its newest intact checkpoint.")
    made.add_argument("run", help="Run folder.")
    made.add_argument("--quiet", action="store_true", help="Show no progress.")
    made.add_processes()
    made.add_argument(
        "--recompute-metrics", action="store_true", help="Recompute lost metrics, from round 0 if necessary."
    )
    text = "Extend the run to this many steps of each member, e.g. 2e6; schedules then run over the new total."
    add_callbacks(made)
    made.add_argument("--total-env-steps", metavar="N", help=text)
    made.add_trust("the run's environment id")
    return made


def main(arguments: Sequence[str]) -> None:
    """Continue a run to its end, and print the scores."""
    options = parser().parse(arguments)
    join_processes(options)
    from nextpolicy.run import api

    print_scores(
        api.resume(
            options.run,
            quiet=options.quiet,
            trust=options.trust_module,
            recompute_metrics=options.recompute_metrics,
            total_env_steps=options.total_env_steps,
            callback=callback_of(options),
        )
    )
