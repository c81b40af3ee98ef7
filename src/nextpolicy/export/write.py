"""Writes an exported policy: policy.json, policy.npz, load_policy.py, README.md and, if wanted, policy.onnx."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from nextpolicy.config import ConfigError
from nextpolicy.export import numpy_policy, onnx_graph
from nextpolicy.export.numpy_policy import Arrays
from nextpolicy.runfiles import write_manifest, write_whole
from nextpolicy.settings import path_of


def check(folder: str | Path, onnx: bool) -> Path:
    """The folder. Raises unless it is new or empty, and everything that writing needs is installed."""
    path = path_of("folder", folder)
    if any(place.exists() and not place.is_dir() for place in (path, *path.parents)):
        raise ConfigError(f"folder: expected a new or empty folder, got {path}, which is a file or inside one")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(
            f"folder: expected a new or empty folder, got {path}, which holds other files; nothing was written"
        )
    if onnx:
        onnx_graph.check_installed()
    return path


def write(path: Path, description: dict[str, Any], arrays: Arrays, onnx: bool) -> None:
    """Write the files, policy.json last, so that a folder without it is known to be incomplete."""
    model = onnx_graph.model(description, arrays).SerializeToString() if onnx else None
    path.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    write_whole(path / "policy.npz", packed.getvalue())
    if model is not None:
        write_whole(path / "policy.onnx", model)
    write_whole(path / "load_policy.py", Path(numpy_policy.__file__).read_bytes())
    write_whole(path / "README.md", _readme(description, onnx).encode())
    write_manifest(path / "policy.json", {**description, "arrays": numpy_policy.digest_of(packed.getvalue())})


def _readme(description: dict[str, Any], onnx: bool) -> str:
    made = description["made_by"]
    onnx_line = "- `policy.onnx`: the same as an ONNX model, from `obs` to greedy `action`\n" if onnx else ""
    return f"""# A policy for {description["environment"]}

The {made["policy"]} policy of {made["algo"]}, seed {made["seed"]}, after {made["env_steps"]} environment steps,
exported by nextpolicy {made["nextpolicy"]}. It needs Python and NumPy:

```python
import numpy as np
from load_policy import load

policy = load(".")
action = policy(obs)                                   # greedy; one observation or a batch
action = policy.sample(obs, np.random.default_rng(0))
```

- `policy.json`: spaces, normalisation, network, action distribution, and what produced them
- `policy.npz`: arrays, float32
- `load_policy.py`: the loader
{onnx_line}"""
