"""Files that GitHub, pre-commit, citation tools and type checkers read: they parse, and agree with the project."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import nextpolicy

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ISSUE_FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def parsed(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_workflow_runs_what_is_run_here() -> None:
    (path,) = WORKFLOWS
    (job,) = parsed(path)["jobs"].values()
    steps = job["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", step["uses"]) for step in steps if "uses" in step)
    supported = [c.rsplit(" ", 1)[1] for c in project()["classifiers"] if "Python :: 3." in c]
    assert job["strategy"]["matrix"]["python"] == [supported[0], supported[-1]]
    assert not re.search(r"secrets|https?://", path.read_text(encoding="utf-8"))


def test_the_command_of_the_workflow_is_make_test() -> None:
    command = ROOT / ".ci" / "run"
    assert command.read_text(encoding="utf-8").splitlines()[-1] == "make test"
    assert command.stat().st_mode & 0o111, "the workflow runs it as a program"


@pytest.mark.parametrize("path", ISSUE_FORMS, ids=lambda p: p.stem)
def test_issue_forms_have_what_github_asks_for(path: Path) -> None:
    form = parsed(path)
    assert {"name", "description", "labels", "body"} == set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(field["attributes"]["label"] for field in form["body"])
    assert form["body"][0]["validations"]["required"]


def test_there_are_three_kinds_of_issue() -> None:
    assert [path.stem for path in ISSUE_FORMS] == ["bug", "feature", "question"]


def test_hooks_are_those_of_make_test_and_download_nothing() -> None:
    (repo,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        assert f"$(BIN)/{hook['name']}" in makefile


def test_the_citation_names_the_software_and_the_paper() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["version"] == nextpolicy.__version__
    assert citation["title"] == project()["name"]
    assert citation["license"] == project()["license"]
    assert citation["authors"] == project()["authors"]
    (paper,) = citation["references"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    names = [f"{a['given-names']} {a['family-names']}" for a in paper["authors"]]
    assert f"{' and '.join(names)}, *{paper['title']}*" in readme
    assert f"]({paper['url']})" in readme
    assert f"journal = {{{paper['journal']}}}, year = {{{paper['year']}}}" in readme


def test_type_checkers_see_that_the_package_is_annotated() -> None:
    assert (Path(nextpolicy.__file__).parent / "py.typed").is_file()


def test_every_development_package_is_pinned() -> None:
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()}
    wanted = {re.split(r"[\[<>=]", name)[0] for name in project()["optional-dependencies"]["dev"]}
    assert wanted - {"nextpolicy"} <= pinned


def test_nothing_that_programs_make_is_committed() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"git cannot list the files: {done.stderr.strip()}")
    assert not [name for name in done.stdout.split("\0") if name.endswith((".pyc", ".so", ".log", ".whl"))]


def test_files_and_functions_are_short() -> None:
    """No file of the package has more than 300 lines, no function more than 60."""
    for path in sorted((ROOT / "src" / "nextpolicy").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_the_method_fits_on_one_screen() -> None:
    assert (ROOT / "src/nextpolicy/loop/round.py").read_text().count("\n") < 120
