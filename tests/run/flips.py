"""Flip single bits of the files of a program cache, start again on them, and say what came of it.

Each start is that of a training: the cache is enabled, a program is lowered by a keeper, compiled and run. A start on
damage may crash or hang, so starts run in a worker process (`python -m tests.run.flips`, HOME being a folder of the
test's), which is replaced where it is lost.
"""

from __future__ import annotations

import json
import queue
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 2605
ALL = 264


def outcomes(home: Path, numbers: list[int], patience: float = 120.0) -> Iterator[str]:
    """For every numbered flip `same`, `changed`, `not mended`, `raised`, `crashed` or `hung`, with what it hit."""
    left = list(numbers)
    while left:
        worker = _start_worker(home, left)
        lines: queue.Queue[str] = queue.Queue()
        pump = threading.Thread(target=_pump, args=(worker, lines))
        pump.start()
        try:
            while left:
                line = lines.get(timeout=patience)
                if not line:
                    yield f"crashed: flip {left.pop(0)}, exit code {worker.wait()}"
                    break
                yield line.strip()
                left.pop(0)
        except queue.Empty:
            yield f"hung: flip {left.pop(0)}"
        finally:
            worker.kill()
            worker.wait()
            pump.join()


def _start_worker(home: Path, numbers: list[int]) -> subprocess.Popen[str]:
    from .helpers import environment

    settings = environment(HOME=str(home), NEXTPOLICY_KEEP_TRACED="1")
    del settings["JAX_COMPILATION_CACHE_DIR"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.run.flips", json.dumps(numbers)]
    return subprocess.Popen(command, env=settings, cwd=Path(__file__).parents[2], text=True, stdout=subprocess.PIPE)


def _pump(worker: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert worker.stdout is not None
    with worker.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _work(numbers: list[int]) -> None:
    folder = Path.home() / ".cache" / "nextpolicy" / "xla"
    shutil.rmtree(folder, ignore_errors=True)  # what a worker that was lost has left
    expected = _start(cached=False)
    assert _start() == expected
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    whole = {path: path.read_bytes() for path in files}
    for number in numbers:
        for path, data in whole.items():
            path.write_bytes(data)
        dice = random.Random(f"{SEED} {number}")
        path = dice.choice(files)
        place, bit = dice.randrange(len(whole[path])), dice.randrange(8)
        damaged = bytearray(whole[path])
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        what = f"flip {number}, bit {bit} of byte {place} of {len(damaged)} in {path.relative_to(folder)}"
        print(f"{_outcome(expected, path, bytes(damaged))}: {what}", flush=True)


def _outcome(expected: Any, path: Path, damaged: bytes) -> str:
    try:
        if _start() != expected:
            return "changed"
    except Exception as error:
        return f"raised {type(error).__name__}"
    return "not mended" if path.read_bytes() == damaged else "same"


def _start(cached: bool = True) -> list[Any]:
    """What the program gives in a start of its own, as far as one process can have several."""
    import jax
    import numpy as np
    from jax.experimental.compilation_cache import compilation_cache

    from nextpolicy.run import api, traced

    jax.clear_caches()
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", None)
    if cached:
        api.enable_cache()
    init, block, arguments, seeds = _program()
    keeper = traced.keeper("flips") if cached else None
    lowered = None if keeper is None else keeper.recall(arguments[0], seeds)
    if keeper is not None and lowered is None:
        lowered = keeper.lower(init, block, arguments, seeds)
    lowered = lowered or (init.lower(seeds), block.lower(*arguments))
    rate, _, *numbers = arguments
    state, metrics, _ = lowered[1].compile()(rate, lowered[0].compile()(seeds), *numbers)
    return [np.asarray(x).tobytes().hex() for x in jax.tree.leaves((state, metrics))]


def _program() -> tuple[Any, Any, tuple[Any, ...], Any]:
    """A few gradient steps on random numbers, in the form of `init` and `block`, their arguments, and seeds."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights) - 0.25) ** 2)

    def step(weights: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(loss)(weights, jax.random.normal(key, (4, 3)))
        return weights - 0.1 * slope, value

    def init(seeds: jax.Array) -> jax.Array:
        return jnp.full((3, 2), 0.5) + seeds[0]

    def block(rate: jax.Array, weights: jax.Array, rounds: jax.Array, warming: jax.Array) -> tuple[Any, Any, None]:
        weights, losses = jax.lax.scan(step, weights * rate, jax.random.split(jax.random.key(rounds), 5))
        return weights, {"loss": jnp.where(warming, 0.0, losses)}, None

    state, seeds = jax.ShapeDtypeStruct((3, 2), jnp.float32), jnp.zeros(2, jnp.uint32)
    return jax.jit(init), jax.jit(block), (jnp.float32(2.0), state, np.int32(5), np.bool_(False)), seeds


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
