"""Every code block of the documentation is executed: a few pages always, the others among the slow tests."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from docs.blocks import ALL, EXECUTED, PAGES, ROOT, Block, execute, small
from nextpolicy.cli.main import COMMANDS
from nextpolicy.config import FIELDS, presets

__all__ = ["small"]
pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

QUICK = ("quick-start.md",)  # executed always; the others train on more environments and compile more programs
MOST_MARKED = 16  # blocks that say why they are not executed


def test_every_block_is_executed_or_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code = [block for block in ALL if block.language in EXECUTED]
    marked = [block for block in code if not block.executed]
    pages = Counter(block.page.name for block in code if block.executed)
    with capsys.disabled():
        print(f"\nblocks of the documentation: {sum(pages.values())} executed {dict(pages)}, {len(marked)} not:")
        print("\n".join(f"  {block}: {block.why_not}" for block in marked))
    assert set(QUICK) <= set(pages)
    assert sum(pages.values()) >= 2 * len(marked)
    assert len(marked) <= MOST_MARKED
    assert all(len(str(block.why_not).split()) > 1 for block in marked), "a reason, not a word"


@pytest.mark.parametrize("block", [b for b in ALL if b.language not in EXECUTED], ids=str)
def test_no_command_hides_in_a_block_of_another_language(block: Block) -> None:
    assert block.language in ("", "toml", "bibtex"), "say python or bash, so that it is executed"
    assert not re.search(r"^(nextpolicy|pip|python|make|import|from) ", block.text, flags=re.MULTILINE)
    assert block.why_not is None, "only python and bash blocks are executed"


def parsed(command: str, *words: str) -> argparse.Namespace:
    """The options of a command, by its own parser."""
    module = import_module(f"nextpolicy.cli.{COMMANDS[command].module}")
    if hasattr(module, "PARSERS"):
        return module.PARSERS[words[0]]().parse(words[1:])
    return module.parser().parse(words)


@pytest.mark.parametrize("block", [b for b in ALL if b.language in EXECUTED], ids=str)
def test_it_parses_and_names_what_exists(block: Block) -> None:
    """Also of blocks that are not executed, and before the slow tests are run."""
    if block.language == "python":
        compile(block.text, str(block), "exec")
        return
    for words in block.commands:
        if words[0] != "nextpolicy":
            assert block.why_not, f"{block}: {words[0]}"
            continue
        chosen = vars(parsed(*words[1:]))
        if words[1] == "train":
            presets.build(preset=chosen["preset"], **{name: chosen[name] for name in FIELDS if name in chosen})


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    Path("results").mkdir()
    for recorded in (ROOT / "results").iterdir():  # some pages read what the repository has
        Path("results", recorded.name).symlink_to(recorded)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in ALL:
        if block.page != page:
            continue
        if block.language == "toml" and (name := re.match(r"# (\S+\.toml)$", block.text.splitlines()[0])):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        if block.executed:
            execute(block, namespace)


WITH_BLOCKS = [page for page in PAGES if any(block.page == page and block.executed for block in ALL)]


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # Four Rooms after two rounds has little to draw
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=() if p.name in QUICK else pytest.mark.slow) for p in WITH_BLOCKS],
    ids=lambda p: p.name,
)
def test_the_blocks_of_a_page_run(page: Path, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = set(sys.modules)
    try:
        run_page(page, tmp_path, monkeypatch)
    finally:
        for name in set(sys.modules) - loaded:  # modules in the folder, such as the loader of an exported policy
            if Path(getattr(sys.modules[name], "__file__", None) or sys.prefix).resolve().is_relative_to(tmp_path):
                del sys.modules[name]
