"""Every path that the docs and the docstrings name exists."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_IN_DOCS = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\w\.(?:py|toml|md|sql|yaml|ts|tsx|sh))`|`((?:[\w-]+/){2,})`")
_IN_CODE = re.compile(r"`?((?:[\w-]+/)*[\w-]+\.py)`?")
_FOREIGN = {"setup.py", "train.py", "dashboard/src/api/schema.ts"}
"""Files of users that examples name, and those that make generates."""


def _tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def _exists(name: str, tracked: set[str]) -> bool:
    """Return whether a path, or the end of one, is in the repository."""
    end = name.rstrip("/")
    if name.endswith("/"):
        return any(f"/{end}/" in f"/{path}" for path in tracked)
    return any(path == end or path.endswith(f"/{end}") for path in tracked)


@pytest.mark.parametrize("page", _DOCS, ids=lambda page: page.name)
def test_paths_in_the_docs_exist(page: Path) -> None:
    tracked = _tracked()
    named = {first or second for first, second in _IN_DOCS.findall(page.read_text())}
    assert {name for name in named - _FOREIGN if not _exists(name, tracked)} == set()


def test_modules_in_docstrings_exist() -> None:
    tracked, missing = _tracked(), set[tuple[str, str]]()
    for path in sorted(tracked):
        if not path.startswith("src/") or not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for name in _IN_CODE.findall(ast.get_docstring(node) or ""):
                    if name not in _FOREIGN and not _exists(name, tracked):
                        missing.add((path, name))
    assert missing == set()
