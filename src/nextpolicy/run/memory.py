"""Whether replay buffers fit into the memory of the device, checked before a run folder is made."""

from __future__ import annotations

import os

import jax

from nextpolicy.config import ConfigError
from nextpolicy.core.replay import Replay

_SHARE = 0.8  # of the memory; the rest is for networks, environments and one checkpoint


def check_replay(replay: Replay, members: int, drawn: int) -> None:
    """Raise `ConfigError` if the buffers of all members and what a round draws from them exceed the memory.

    replay  one buffer, or its shapes
    drawn   transitions of all minibatches of a round, which are gathered before the first gradient step
    """
    leaves = jax.tree.leaves(replay.data)
    row = sum(x.size // x.shape[0] * x.dtype.itemsize for x in leaves)
    held, room = leaves[0].shape[0], _memory()
    if room is None or (held + drawn) * row * members <= _SHARE * room:
        return
    most = int(_SHARE * room / row / members)
    about = f"for {members} members of {row} bytes per transition in {room / 1e9:.1f} GB of memory"
    if drawn >= most:
        what = f"at most {most} transitions in the minibatches of a round"
        raise ConfigError(f"updates_per_step: expected {what} {about}, got {drawn}")
    raise ConfigError(f"replay_size: expected at most {most - drawn} {about}, got {held}")


def _memory() -> int | None:
    """Bytes of the device if it reports them, else of the machine; None if unknown."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
