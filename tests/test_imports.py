"""Imports point one way, and no optional package is loaded before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nextpolicy

PACKAGE = Path(nextpolicy.__file__).parent

# Which parts of the package a part may import, at any depth in the code:
# cli -> {studies, bench, experiments, report} -> run -> loop -> {algos, criteria, nets, envs} -> core -> types.
# report reads files and never imports the training. Nothing but __main__ imports cli.
_CONFIG = {"_version", "config", "extras", "runfiles", "scores", "settings"}
_LEARNING = {"types", "core", "settings", "algos", "criteria"}
_TRAINING = _LEARNING | _CONFIG | {"nets", "envs", "loop"}
MAY_IMPORT = {
    "_version": set(),
    "extras": set(),
    "types": set(),
    "settings": set(),
    "runfiles": set(),
    "scores": set(),
    "core": {"types"},
    "criteria": {"types", "core", "settings"},
    "algos": {"types", "core", "settings"},
    "tabular": {"types", "core", "criteria"},
    "envs": {"types", "core", "tabular", "extras"},
    "config": _LEARNING | {"_version"},
    "nets": {"types", "core"} | _CONFIG,
    "loop": _TRAINING,
    "report": _CONFIG,
    "export": {"types", "core", "envs", "nets"} | _CONFIG,
    "run": _TRAINING | {"tabular", "export"},
    "studies": _TRAINING | {"tabular", "run", "report"},
    "bench": _TRAINING | {"tabular", "run"},
    "experiments": _TRAINING | {"run"},
    "cli": _TRAINING | {"tabular", "run", "report", "studies", "bench", "experiments"},
    "__main__": {"cli"},
    "__init__": _TRAINING | {"tabular", "run"},
}
# Networks are built from the description of an environment; the preset for an environment is named by its backend;
# `Run.plot` draws with the report's means.
EXCEPTIONS = {("nets", "nextpolicy.envs.base"), ("config", "nextpolicy.envs.registry")}
EXCEPTIONS |= {("run", "nextpolicy.report.plot")}
BACKENDS = {"gymnax", "brax", "mujoco_playground", "craftax", "navix", "gymnasium", "ale_py"}
BACKENDS |= {"ray", "wandb", "tensorboardX", "jinja2", "onnx"}
LOADER = "nextpolicy.export.numpy_policy"  # is copied into exported folders
CORE_LIBRARIES = {"jax", "numpy", "nextpolicy"} | sys.stdlib_module_names


def part_of(module: str) -> str:
    """The part a dotted module name belongs to: `nextpolicy.core.losses` to `core`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imported_modules(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """Absolute dotted names that an import statement of `module` loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parents = module.split(".") if is_package else module.split(".")[:-1]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    # `from nextpolicy import core` loads a part; `from nextpolicy.core import returns` belongs to the part named.
    return [f"{base}.{alias.name}" for alias in node.names] if base == "nextpolicy" else [base]


def nodes_run_on_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those inside functions and under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from nodes_run_on_import(other)
            continue
        yield child
        yield from nodes_run_on_import(child)


def complaints(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the source of `module` imports and may not, one line each."""
    tree, part = ast.parse(source), part_of(module)
    if part not in MAY_IMPORT:
        return [f"{module}: a new part of the package; say in MAY_IMPORT what it may import"]
    found = []
    for node in ast.walk(tree):
        for name in imported_modules(node, module, is_package):
            top = name.split(".")[0]
            if module == LOADER and top not in {"numpy"} | sys.stdlib_module_names:
                found.append(f"{module}:{node.lineno}: the loader may not import {name}")
            elif top == "nextpolicy":
                wanted = part_of(name)
                exported = wanted not in MAY_IMPORT and name.count(".") == 1  # a name, such as nextpolicy.train
                wanted = "__init__" if exported else wanted
                if wanted != part and wanted not in MAY_IMPORT[part] and (part, name) not in EXCEPTIONS:
                    found.append(f"{module}:{node.lineno}: {part} may not import {name}")
            elif part in ("core", "types") and top not in CORE_LIBRARIES:
                found.append(f"{module}:{node.lineno}: {part} may not import {name}")
    for node in nodes_run_on_import(tree):
        for name in imported_modules(node, module, is_package):
            if name.split(".")[0] in BACKENDS:
                found.append(f"{module}:{node.lineno}: {name} must be imported where it is used, not at the top")
    return found


def imported_parts(source: str, module: str, is_package: bool = False) -> set[str]:
    """The other parts that the source of `module` imports anywhere: lazily and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for name in imported_modules(node, module, is_package):
            if name.split(".")[0] == "nextpolicy":
                found.add(part_of(name) if part_of(name) in MAY_IMPORT else "__init__")
    return found - {part_of(module)}


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Parts that import each other in a circle, the first one repeated at the end; empty if there are none."""
    done: set[str] = set()

    def visit(part: str, path: list[str]) -> list[str]:
        if part in path:
            return [*path[path.index(part) :], part]
        if part in done:
            return []
        for other in sorted(imports.get(part, ())):
            if cycle := visit(other, [*path, part]):
                return cycle
        done.add(part)
        return []

    return next((cycle for part in sorted(imports) if (cycle := visit(part, []))), [])


def modules() -> list[tuple[str, Path]]:
    """Every module of the package, as (dotted name, file)."""
    names = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        names.append((".".join(("nextpolicy", *parts)), file))
    return names


@pytest.mark.parametrize(("module", "file"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_one_way(module, file):
    assert complaints(file.read_text(encoding="utf-8"), module, file.stem == "__init__") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nextpolicy.core.losses", "from nextpolicy.loop import round"),
        ("nextpolicy.core.losses", "from nextpolicy import loop"),
        ("nextpolicy.core.losses", "import nextpolicy.loop.round as u"),
        ("nextpolicy.core.losses", "import nextpolicy"),
        ("nextpolicy.core.losses", "from ..loop import round"),
        ("nextpolicy.core.losses", "from .. import loop"),
        ("nextpolicy.core.losses", "def f():\n    from nextpolicy.envs import base"),
        ("nextpolicy.core.losses", "import pandas"),
        ("nextpolicy.core.losses", "import optax"),
        ("nextpolicy.types", "from nextpolicy.core import check"),
        ("nextpolicy.tabular.mdp", "from nextpolicy.envs import base"),
        ("nextpolicy.nets.build", "from nextpolicy.loop import state"),
        ("nextpolicy.nets.build", "from nextpolicy.envs.brax import make"),
        ("nextpolicy.envs.base", "from nextpolicy.nets.build import build"),
        ("nextpolicy.envs.base", "from nextpolicy.run import metrics"),
        ("nextpolicy.loop.round", "from nextpolicy.run import checkpoint"),
        ("nextpolicy.loop.round", "from nextpolicy import resume"),
        ("nextpolicy.run.api", "from nextpolicy.report import write"),
        ("nextpolicy.run.api", "def f():\n    from nextpolicy.studies.theory import study"),
        ("nextpolicy.run.api", "def f():\n    from nextpolicy.experiments import engines"),
        ("nextpolicy.run.api", "from nextpolicy.bench import comparison"),
        ("nextpolicy.experiments.engines", "from nextpolicy.cli import suite"),
        ("nextpolicy.report.html", "from nextpolicy.cli import parsing"),
        ("nextpolicy.report.tables", "from nextpolicy.loop import state"),
        ("nextpolicy.report.tables", "from nextpolicy.envs import base"),
        ("nextpolicy.report.tables", "from nextpolicy.nets import build"),
        ("nextpolicy.envs.gymnax", "import gymnax"),
        ("nextpolicy.envs.gymnax", "from gymnax.environments import spaces"),
        ("nextpolicy.envs.brax", "try:\n    import brax\nexcept ImportError:\n    brax = None"),
        ("nextpolicy.envs.brax", "class Env:\n    from brax import envs"),
        ("nextpolicy.report.html", "import jinja2"),
        ("nextpolicy.export.write", "from nextpolicy.run.policy import Policy"),
        ("nextpolicy.export.onnx_graph", "import onnx"),
        ("nextpolicy.export.numpy_policy", "from nextpolicy.config import ConfigError"),
        ("nextpolicy.export.numpy_policy", "import jax"),
        ("nextpolicy.newcomer", "import numpy"),
    ],
)
def test_a_wrong_import_is_noticed(module, source):
    assert len(complaints(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "nextpolicy.core.losses",
            "import math\nimport jax.numpy as jnp\nfrom nextpolicy.core import check",
        ),
        ("nextpolicy.core.losses", "from . import check\nfrom ..types import Array"),
        ("nextpolicy.loop.round", "from nextpolicy.core import returns\nfrom nextpolicy import nets"),
        ("nextpolicy.envs.gymnax", "def make():\n    import gymnax\n    return gymnax.make"),
        ("nextpolicy.envs.gymnax", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gymnax"),
        ("nextpolicy.report.tables", "import pandas\nfrom nextpolicy.config import presets"),
        ("nextpolicy.studies.theory", "from nextpolicy.tabular import mdp\nfrom nextpolicy.loop import round"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert complaints(source, module) == []


def sources() -> dict[str, set[str]]:
    """What each part of the package imports."""
    imports: dict[str, set[str]] = {}
    for module, file in modules():
        parts = imported_parts(file.read_text(encoding="utf-8"), module, file.stem == "__init__")
        imports.setdefault(part_of(module), set()).update(parts)
    return imports


def test_there_are_no_package_cycles():
    assert find_cycle(sources()) == []
    assert find_cycle({part: allowed - {part} for part, allowed in MAY_IMPORT.items()}) == [], "the table allows one"


@pytest.mark.parametrize(
    "source",
    [
        "from nextpolicy.studies.theory import checks",
        "def f():\n    def g():\n        from nextpolicy import studies",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nextpolicy.studies.page as page",
        "class Run:\n    def report(self):\n        from ..studies import page",
    ],
)
def test_a_package_cycle_is_noticed(source):
    imports = sources()
    imports["run"] = imports["run"] | imported_parts(source, "nextpolicy.run.folder")
    assert find_cycle(imports) == ["run", "studies", "run"]


def test_a_long_cycle_is_noticed_and_a_diamond_is_not():
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}) == ["b", "c", "d", "b"]


def test_importing_the_package_loads_no_suite():
    code = f"import sys, nextpolicy; print(*sorted({BACKENDS!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.split() == []
