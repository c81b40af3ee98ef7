"""The command line: `nextpolicy train|resume|eval|envs|study`. Every error is one line and exit code 2."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from nextpolicy._version import __version__


class UsageError(ValueError):
    """A command line that cannot be: one line."""


class _Parser(argparse.ArgumentParser):
    """Errors as exceptions, so that there is one place that prints them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # `--seed` is not `--seeds`

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what was asked, 2 with one line on stderr if it could not."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["study"]:
        # Studies solve many small systems: threads inside each only wait for one another. Read when NumPy is loaded.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = _asked_for_help(arguments)
    try:
        from nextpolicy.config import nearest

        if not arguments or arguments[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if arguments[0] == "--version":
            print(f"nextpolicy {__version__}")
            return 0
        if arguments[0] not in COMMANDS:
            raise UsageError(f"unknown command {arguments[0]!r}{nearest(arguments[0], COMMANDS) or _known()}")
        COMMANDS[arguments[0]][0](arguments[1:])
        return 0
    except KeyboardInterrupt as stop:
        print(f"nextpolicy: {str(stop) or 'stopped'}", file=sys.stderr)
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("NEXTPOLICY_TRACEBACK"):
            raise
        print(f"nextpolicy: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} (NEXTPOLICY_TRACEBACK=1 shows more)"


def _asked_for_help(arguments: list[str]) -> list[str]:
    """`help` as `--help`, and `help train` as `train --help`."""
    return [*(a for a in arguments if a != "help"), "--help"] if arguments[:1] == ["help"] else arguments


def _known() -> str:
    return f"; takes one of {', '.join(COMMANDS)}"


def _overview() -> str:
    rows = "\n".join(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"nextpolicy {__version__}: PPO and Stable-Value PPO in JAX\n\nusage: nextpolicy COMMAND ...\n\n{rows}\n\n"
        "`nextpolicy COMMAND --help` explains each. NEXTPOLICY_TRACEBACK=1 shows where an error came from."
    )


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse strictly; an unknown option is answered with the nearest known one."""
    from nextpolicy.config import nearest

    parsed, rest = parser.parse_known_args(list(arguments))
    if rest:
        known = [o for action in parser._actions for o in action.option_strings or [action.dest]]
        stray = rest[0].split("=")[0]
        hint = nearest(stray, known) or f"; `{parser.prog} --help` lists what is taken"
        raise UsageError(f"unknown {'option' if stray.startswith('-') else 'argument'} {stray!r}{hint}")
    return parsed


def _use_all_cores() -> None:
    from nextpolicy.run import processes

    processes.use_all_cores()


def _distributed(options: argparse.Namespace) -> None:
    """Join a multi-process run before anything touches a device."""
    import jax

    if options.coordinator is None:
        return
    if options.num_processes is None or options.process_id is None:
        raise UsageError("--coordinator: takes --num-processes and --process-id beside it")
    from nextpolicy.config import whole

    count = whole("num-processes", options.num_processes, 1, 100_000)
    whole("process-id", options.process_id, 0, count - 1)
    jax.distributed.initialize(options.coordinator, options.num_processes, options.process_id)


def _train_parser() -> argparse.ArgumentParser:
    from nextpolicy.config import FIELDS, describe
    from nextpolicy.presets import PRESETS

    parser = _Parser(
        prog="nextpolicy train",
        description="Train a population: algorithms x swept values x seeds of one environment, as one program.",
        epilog="Fields start from the preset; `paper` is the default where the paper treats the environment.",
        allow_abbrev=False,
    )
    parser.add_argument("env", help=FIELDS["env"].help)
    parser.add_argument("--preset", help=f"Settings to start from: paper, {', '.join(PRESETS)}.")
    parser.add_argument("--out", help="Folder for the run; default runs/<env>-<algo>-<time>.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    parser.add_argument("--coordinator", help="host:port of process 0, for a run over several processes or hosts.")
    parser.add_argument("--num-processes", type=int, help="How many processes there are, with --coordinator.")
    parser.add_argument("--process-id", type=int, help="Which of them this is, with --coordinator.")
    group = parser.add_argument_group("fields")
    for name, info in FIELDS.items():
        if name == "env":
            continue
        many = name in ("env_options", "sweep")
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            nargs="+" if many else None,
            metavar="NAME=VALUE" if many else "VALUE",
            default=argparse.SUPPRESS,
            help=f"{info.help} Takes {describe(info)}.".replace("%", "%%"),
        )
    return parser


def _train(arguments: Sequence[str]) -> None:
    from nextpolicy.config import FIELDS

    options = _parse(_train_parser(), arguments)
    fields = {k: v for k, v in vars(options).items() if k in FIELDS and k != "env"}
    _distributed(options)
    if options.coordinator is None:
        _use_all_cores()
    from nextpolicy.run import api

    run = api.train(options.env, preset=options.preset, out=options.out, quiet=options.quiet, **fields)
    _print_scores(run)


def _print_scores(run: Any) -> None:
    import jax

    if jax.process_index() == 0:
        print(run.scores().to_string(index=False))
        print(f"run: {run.path}")


def _resume(arguments: Sequence[str]) -> None:
    parser = _Parser(prog="nextpolicy resume", description="Continue a run from its newest whole checkpoint.")
    parser.add_argument("run", help="Run folder.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    parser.add_argument("--coordinator", help="host:port of process 0, for a run over several processes or hosts.")
    parser.add_argument("--num-processes", type=int, help="How many processes there are, with --coordinator.")
    parser.add_argument("--process-id", type=int, help="Which of them this is, with --coordinator.")
    parser.add_argument(
        "--recompute-metrics", action="store_true", help="Compute lost metrics again, from round 0 where need be."
    )
    _add_trust(parser)
    options = _parse(parser, arguments)
    _distributed(options)
    if options.coordinator is None:
        _use_all_cores()
    from nextpolicy.run import api

    given = {"trust": options.trust_module, "recompute_metrics": options.recompute_metrics}
    _print_scores(api.resume(options.run, quiet=options.quiet, **given))


def _add_trust(parser: argparse.ArgumentParser) -> None:
    words = "Module that the run's environment id may import, which runs its code; may be repeated."
    parser.add_argument("--trust-module", action="append", default=[], metavar="MODULE", help=words)


def _eval(arguments: Sequence[str]) -> None:
    parser = _Parser(prog="nextpolicy eval", description="Evaluate a run's policies by whole episodes.")
    parser.add_argument("run", help="Run folder.")
    parser.add_argument("--policy", default="target", help="target or behaviour.")
    parser.add_argument("--episodes", type=int, default=100, help="Episodes per member.")
    parser.add_argument("--num-envs", type=int, help="Environments they are spread over evenly; default one each.")
    parser.add_argument("--greedy", action="store_true", help="Most probable action instead of a sample.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the evaluation.")
    parser.add_argument("--video", help="Write one episode of --member to this file, .gif or .mp4.")
    parser.add_argument("--member", type=int, default=0, help="Member that the video shows.")
    _add_trust(parser)
    options = _parse(parser, arguments)
    from nextpolicy.run import api, video

    run = api.load(options.run, trust=options.trust_module)
    if options.video:
        video.check_target(options.video)
        video.check_drawable(run)
        run.snapshot(options.policy, options.member)  # or a member that is not there is noticed after all the work
    print(
        run.evaluate(options.episodes, options.policy, options.greedy, options.num_envs, options.seed).to_string(
            index=False
        )
    )
    if options.video:
        total = video.record(run, options.video, options.policy, options.member, options.greedy, options.seed)
        print(f"video: {options.video} (return {total:.4g})")


def _envs(arguments: Sequence[str]) -> None:
    parser = _Parser(prog="nextpolicy envs", description="List environment ids.")
    parser.add_argument("backend", nargs="?", help="Only this backend, e.g. gymnax.")
    options = _parse(parser, arguments)
    from nextpolicy.envs import build

    print("\n".join(build.names(options.backend)))


def _study(arguments: Sequence[str]) -> None:
    from nextpolicy.config import nearest

    studies = ("four-rooms", "theory")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: nextpolicy study {{{','.join(studies)}}} ...   (--help after the name explains it)")
        return
    if arguments[0] not in studies:
        raise UsageError(
            f"unknown study {arguments[0]!r}{nearest(arguments[0], list(studies)) or f'; takes {studies}'}"
        )
    _use_all_cores()
    if arguments[0] == "theory":
        from nextpolicy.studies import theory as study
    else:
        from nextpolicy.studies import four_rooms as study
    study.main(list(arguments[1:]), _Parser, _parse)


def _bench(arguments: Sequence[str]) -> None:
    _use_all_cores()
    from nextpolicy.bench import main as bench

    bench.main(list(arguments), _Parser, _parse)


def _suite(arguments: Sequence[str]) -> None:
    from nextpolicy.run import suite_cli

    if arguments[:1] == ["run"]:
        _use_all_cores()
    suite_cli.main(arguments, _Parser, _parse)


def _report(arguments: Sequence[str]) -> None:
    from nextpolicy.report import command

    command.main(arguments, _Parser, _parse)


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "train": (_train, "train PPO, SV-PPO or both on an environment"),
    "resume": (_resume, "continue a run, bit for bit"),
    "eval": (_eval, "evaluate a run's policies, or film one"),
    "envs": (_envs, "list environments"),
    "bench": (_bench, "measure speed against the simulator alone and peers"),
    "suite": (_suite, "run a whole comparison, and see how far it is"),
    "report": (_report, "tables, figures and a page from run folders"),
    "study": (_study, "exact studies: four-rooms, theory"),
}


def program() -> NoReturn:
    """The command line as a program of its own: a second ctrl-C ends it at once and without a traceback."""
    from nextpolicy.run import interrupt

    interrupt.exit_on_second_signal()
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is Python's own shutdown
    sys.exit(code)


if __name__ == "__main__":
    program()
