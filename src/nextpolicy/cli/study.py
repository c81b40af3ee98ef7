"""`nextpolicy study four-rooms|criteria|off-policy|theory`: the exact studies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nextpolicy.cli.parsing import Parser, UsageError, check_choice

# Fields of the configuration that the Four Rooms study sets itself.
_FIXED = ("env", "env_options", "algo", "total_env_steps", "sweep", "init_from")


def main(arguments: Sequence[str]) -> None:
    """Run a study, then print its main results and the path of its report."""
    studies = {"four-rooms": _four_rooms, "criteria": _criteria, "off-policy": _off_policy, "theory": _theory}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: nextpolicy study {{{','.join(studies)}}} ...   (see `nextpolicy study four-rooms --help`)")
        return
    check_choice("study", arguments[0], studies)
    from nextpolicy.run import processes

    processes.use_all_cores()
    studies[arguments[0]](arguments[1:])


def _progress(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _default_out(study: str) -> Path:
    return Path("runs") / f"study-{study}-{time.strftime('%Y%m%d-%H%M%S')}"


def _four_rooms(arguments: Sequence[str]) -> None:
    from nextpolicy.config import FIELDS

    options = _four_rooms_parser().parse(arguments)
    from nextpolicy.studies.four_rooms import report, study

    fields = {k: v for k, v in vars(options).items() if k in FIELDS}
    say = _progress(options.quiet)
    started = time.monotonic()
    if options.resume is not None:
        if fields or options.noise or options.rounds or options.out:
            raise UsageError("--resume: expected no other settings; the study keeps its own")
        result = study.resume(options.resume, quiet=options.quiet)
    else:
        rounds = study.ROUNDS if options.rounds is None else options.rounds
        config = study.configuration(options.noise or "fail", rounds, **fields)
        size = f"{len(config.run.seeds)} seeds x {len(study.ALGOS)} algorithms x {rounds} rounds"
        say(f"four-rooms: {size}; compiling first, about 20 s")
        result = study.run(config, options.out or _default_out("four-rooms"), quiet=options.quiet)
    say(f"four-rooms: trained and solved exactly after {time.monotonic() - started:.0f} s; drawing")
    page = report.write_report(result, say)
    for number, line in enumerate(report.headlines(result), 1):
        print(f"{number}. {line}")
    print(f"report: {page}")


def _four_rooms_parser() -> Parser:
    from nextpolicy.studies.four_rooms.study import ROUNDS, configuration
    from nextpolicy.tabular.four_rooms_mdp import NOISES

    parser = Parser(
        prog="nextpolicy study four-rooms",
        description="Train PPO, static and dynamic SV-PPO on Four Rooms, solve every round exactly, write a report.",
        usage="nextpolicy study four-rooms [--seeds N] [--noise NOISE] [options]",
        example="nextpolicy study four-rooms --seeds 8",
        common=("seeds",),
    )
    parser.add_argument("--noise", help=f"How moves fail: {', '.join(NOISES)}; default fail.")
    parser.add_argument("--rounds", type=int, help=f"Rounds of training; default {ROUNDS}.")
    parser.add_argument("--out", help="New folder for the study; default runs/study-four-rooms-<time>.")
    parser.add_argument("--resume", metavar="DIR", help="Continue a study that was stopped, or write its report again.")
    parser.add_argument("--quiet", action="store_true", help="Show no progress.")
    parser.add_fields(configuration().flat(), "Defaults are those of the study.", skip=_FIXED)
    return parser


def _theory(arguments: Sequence[str]) -> None:
    from nextpolicy.config import MAX_SEED, whole

    options = _theory_parser().parse(arguments)
    from nextpolicy.studies.theory import study
    from nextpolicy.studies.theory.compare import Settings

    for name, low, high in (("cases", 1, 10**7), ("four_rooms_cases", 1, 10**7), ("seed", 0, MAX_SEED)):
        whole(name, getattr(options, name), low, high)
    settings = Settings(
        rounds=options.rounds,
        repeats=options.repeats,
        sigma=options.sigma,
        samples=options.samples,
        step_size=options.step_size,
    )
    path = Path(options.out) if options.out else _default_out("theory")
    study.claim(path)
    results = study.run(options.cases, options.four_rooms_cases, options.seed, settings, _progress(options.quiet))
    page = study.write_report(path, results, settings)
    print(study.plain_table(results["random"], "random MDPs"))
    print(study.plain_table(results["four_rooms"], "Four Rooms"))
    print(study.plain_table(results["comparison"], "policy iteration on Four Rooms with a slow, noisy critic"))
    print(f"report: {page}")
    study.raise_if_violated(results)


def _theory_parser() -> Parser:
    from nextpolicy.studies.theory.compare import Settings

    parser = Parser(
        prog="nextpolicy study theory",
        description="Test every statement of the theory on random cases; run its algorithms with a noisy critic.",
    )
    default = Settings()
    add = parser.add_argument
    add("--cases", type=int, default=2000, help="Cases on random MDPs; default 2000.")
    add("--four-rooms-cases", type=int, default=200, help="Cases on Four Rooms; default 200.")
    add("--seed", type=int, default=0, help="Seed of the cases; default 0.")
    add("--rounds", type=int, default=default.rounds, help="Rounds of policy iteration.")
    add("--repeats", type=int, default=default.repeats, help="Noise seeds of each algorithm.")
    add("--sigma", type=float, default=default.sigma, help="Standard deviation of the critic's noise at one visit.")
    add("--samples", type=float, default=default.samples, help="Visits per round.")
    add("--step-size", type=float, default=default.step_size, help="Step size of mirror descent.")
    add("--out", help="New folder for the report; default runs/study-theory-<time>.")
    add("--quiet", action="store_true", help="Show no progress.")
    return parser


def _criteria(arguments: Sequence[str]) -> None:
    options = _criteria_parser().parse(arguments)
    from nextpolicy.studies.criteria import report, study

    if options.resume is not None:
        if options.seeds or options.rounds or options.noise or options.out:
            raise UsageError("--resume: expected no other settings; the study keeps its own")
        path = Path(options.resume)
    else:
        plan = study.Plan.checked(options.noise, options.seeds, options.rounds)
        path = study.create(options.out or _default_out("criteria"), plan)
    rows = study.run(path, _progress(options.quiet))
    page = report.write(path, rows)
    for number, line in enumerate(report.headlines(rows), 1):
        print(f"{number}. {line}")
    print(f"report: {page}")


def _criteria_parser() -> Parser:
    from nextpolicy.studies.criteria.study import NOISES, ROUNDS, SEEDS

    parser = Parser(
        prog="nextpolicy study criteria",
        description="Train every criterion on Four Rooms; compare its signal and its updates with exact quantities.",
        usage="nextpolicy study criteria [--seeds N] [options]",
        example="nextpolicy study criteria --seeds 8",
    )
    add = parser.add_argument
    add("--seeds", type=int, help=f"Number of seeds; default {SEEDS}.")
    add("--rounds", type=int, help=f"Rounds of training; default {ROUNDS}.")
    add("--noise", action="append", help=f"How moves fail; may be repeated; default {', '.join(NOISES)}.")
    add("--out", help="New folder for the study; default runs/study-criteria-<time>.")
    add("--resume", metavar="DIR", help="Continue a study that was stopped, or write its report again.")
    add("--quiet", action="store_true", help="Show no progress.")
    return parser


def _off_policy(arguments: Sequence[str]) -> None:
    options = _off_policy_parser().parse(arguments)
    from nextpolicy.studies.off_policy import bias, report
    from nextpolicy.studies.theory.study import claim
    from nextpolicy.tabular.four_rooms_mdp import move_probabilities

    move_probabilities(options.noise)
    path = Path(options.out) if options.out else _default_out("off-policy")
    claim(path)
    table = bias.table(options.noise)
    page = report.write(path, table)
    for number, line in enumerate(report.headlines(table), 1):
        print(f"{number}. {line}")
    print(f"report: {page}")


def _off_policy_parser() -> Parser:
    from nextpolicy.tabular.four_rooms_mdp import NOISES

    parser = Parser(
        prog="nextpolicy study off-policy",
        description="Compute the exact bias of the advantage estimators on Four Rooms as a function of the drift.",
        usage="nextpolicy study off-policy [--noise NOISE] [options]",
        example="nextpolicy study off-policy",
    )
    parser.add_argument("--noise", default="fail", help=f"How moves fail: {', '.join(NOISES)}; default fail.")
    parser.add_argument("--out", help="New folder for the study; default runs/study-off-policy-<time>.")
    return parser


PARSERS = {
    "four-rooms": _four_rooms_parser,
    "criteria": _criteria_parser,
    "off-policy": _off_policy_parser,
    "theory": _theory_parser,
}
