"""Time and memory of saving a checkpoint, ours and Orbax's in turns: `python benchmarks/checkpoints.py [--saves 40]`.

Memory is what 40 saves leave allocated in the C heap after garbage collection. Python's objects are counted too: the
script starts itself again with PYTHONMALLOC=malloc. Sizes are those of all arrays together, 50 of them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ARRAYS = 50
SIZES = {"small": 8, "8 MB": 40_000, "400 MB": 2_000_000}  # elements of each array
Save = Callable[[Path, dict[str, Any]], None]


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (*("arena", "ordblks", "smblks", "hblks", "hblkhd"), *("usm", "fsm", "uordblks", "fordblks", "top"))
    ]


def allocated() -> int:
    """Bytes in use in the C heap."""
    library = ctypes.CDLL("libc.so.6")
    library.mallinfo2.restype = _Heap
    gc.collect()
    heap = library.mallinfo2()
    return int(heap.uordblks + heap.hblkhd)


def ours(folder: Path, state: dict[str, Any]) -> None:
    from nextpolicy.run import checkpoint

    checkpoint.save(folder, 1, state, keep=1)


def orbax(folder: Path, state: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as writer:
        writer.save(folder / "1", state)


def seconds(save: Save, state: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        save(Path(folder), state)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=40)
    options = parser.parse_args()
    if os.environ.get("PYTHONMALLOC") != "malloc":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONMALLOC": "malloc"})
    import jax.numpy as jnp

    logging.getLogger("absl").setLevel(logging.ERROR)
    savers: dict[str, Save] = {"ours": ours, "Orbax": orbax}
    print("| | " + " | ".join(f"{who}, {what}" for what in ("ms", "KB kept per save") for who in savers) + " |")
    print("|---" * (1 + 2 * len(savers)) + "|")
    for name, elements in SIZES.items():
        state = {f"array-{i}": jnp.arange(elements, dtype=jnp.float32) + i for i in range(ARRAYS)}
        saves = options.saves if elements < 1_000_000 else 6
        found: dict[str, list[float]] = {who: [] for who in savers}
        kept = dict.fromkeys(savers, 0.0)
        for save in savers.values():  # what is set up once
            for _ in range(5):
                seconds(save, state)
        for _ in range(2):  # in turns
            for who, save in savers.items():
                before = allocated()
                found[who] += [seconds(save, state) for _ in range(saves // 2)]
                kept[who] += (allocated() - before) / saves / 1024
        cells = [f"{1000 * statistics.median(found[who]):.1f}" for who in savers]
        cells += [f"{kept[who]:.1f}" for who in savers]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
