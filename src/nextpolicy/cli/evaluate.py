"""`nextpolicy eval RUN`: evaluate the policies of a run, or record a video."""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.cli.parsing import Parser


def parser() -> Parser:
    """The parser of the command."""
    text = "Evaluate the policies of a run over whole episodes, with sampled actions unless --greedy is given."
    made = Parser(prog="nextpolicy eval", description=text)
    made.add_argument("run", help="Run folder.")
    made.add_argument(
        "--policy", default="target", help="target, behaviour or, after --evaluate-every, best; default target."
    )
    made.add_argument("--episodes", type=int, default=100, help="Episodes per member; default 100.")
    made.add_argument("--num-envs", type=int, help="Parallel environments; default one per episode.")
    made.add_argument("--greedy", action="store_true", help="Take the most probable action instead of sampling.")
    made.add_argument("--seed", type=int, default=0, help="Seed of the evaluation.")
    made.add_argument("--video", help="Record one episode of --member to this .gif or .mp4 file.")
    made.add_argument("--member", type=int, default=0, help="Member shown in the video.")
    made.add_trust("the run's environment id")
    return made


def main(arguments: Sequence[str]) -> None:
    """Print a table of returns and record the video if requested."""
    options = parser().parse(arguments)
    from nextpolicy.run import api, video

    run = api.load(options.run, trust=options.trust_module)
    if options.video:  # detect errors before the evaluation, which takes long
        video.check_target(options.video)
        video.check_drawable(run)
        run.snapshot(options.policy, options.member)
    table = run.evaluate(options.episodes, options.policy, options.greedy, options.num_envs, options.seed)
    print(table.to_string(index=False))
    if options.video:
        total = video.record(run, options.video, options.policy, options.member, options.greedy, options.seed)
        print(f"video: {options.video} (return {total:.4g})")
