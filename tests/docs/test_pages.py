"""Links lead somewhere, every command is run or has a reason, generated pages are up to date."""

import re
from fnmatch import fnmatch
from functools import cache

import pytest
import yaml
from dashboard.tools.openapi import openapi_document
from docsite.hooks import OUTSIDE, REFERENCES
from docsite.links import anchors, links, resolve
from tests.docs.pages import NOT_RUN, ROOT, blocks, is_run, pages, reason_not_to_run

from gpufleet.cli.commands import COMMANDS


@cache
def _on_site() -> dict[str, str]:
    """Return the text of every page, of references that of the site."""
    return pages() | {f"docs/{name}": reference() for name, reference in REFERENCES.items()}


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_to_a_file_and_to_a_heading(page: str) -> None:
    for link in {*links(pages()[page]), *links(_on_site()[page])}:
        if link.is_external:
            continue
        target = resolve(page, link.path) if link.path else page
        assert (ROOT / target).exists(), f"{page}: {link.target}"
        if link.anchor and target in pages():
            assert link.anchor in anchors(_on_site()[target]), f"{page}: {link.target}"


def test_every_command_of_a_shell_block_is_run_or_has_a_reason() -> None:
    missing = [
        f"{page}: {command}"
        for page in pages()
        for block in blocks(page)
        for command in block.commands()
        if not is_run(block, command) and not reason_not_to_run(block, command)
    ]
    assert missing == []


def test_every_reason_is_for_a_command_that_exists() -> None:
    commands = [(page, command) for page in pages() for block in blocks(page) for command in block.commands()]
    for page, beginning, _ in NOT_RUN:
        found = [each for at, each in commands if fnmatch(at, page) and re.match(beginning, each)]
        assert found, f"{page}: {beginning}"


def test_no_page_uses_another_name_for_shell_blocks() -> None:
    languages = {block.language for page in pages() for block in blocks(page)}
    assert languages == {"bash", "sh"}


@pytest.mark.parametrize("page", pages())
def test_commands_are_in_shell_blocks_only(page: str) -> None:
    """A block without a language, or one that is only indented, would hide commands from the tests."""
    fences = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    bare = [body for language, body in fences.findall(pages()[page]) if not language]
    indented = re.findall(r"\n\n((?:    .*\n)+)", fences.sub("", pages()[page]))
    for body in [*bare, *indented]:
        assert not re.match(r" *(gpufleet|kubectl|helm|make|curl|python3?|npm|docker) ", body), body


def test_the_references_have_every_command_and_route() -> None:
    routes = {
        f"### {method.upper()} `{path}`"
        for path, methods in openapi_document()["paths"].items()
        for method in methods
    }
    assert len(routes) > 50
    for page, headings in (("api", routes), ("cli", {f"## gpufleet {name}" for name in COMMANDS})):
        assert headings <= set(_on_site()[f"docs/{page}-reference.md"].splitlines())


def test_references_are_not_in_git() -> None:
    assert all(len(pages()[f"docs/{name}"].splitlines()) < 10 for name in REFERENCES)


def test_every_page_of_the_documentation_is_on_the_site() -> None:
    text = (ROOT / "docsite/mkdocs.yml").read_text()
    nav = set(re.findall(r"^ +- (?:[\w, -]+: )?([\w/.-]+\.md)$", text, re.MULTILINE))
    runbooks = {page for page in pages() if page.startswith("docs/runbooks/Gpu")}
    expected = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    expected -= {page.removeprefix("docs/") for page in runbooks}
    assert nav == expected | set(OUTSIDE.values())


def test_pages_that_name_the_contract_explain_it() -> None:
    for page, text in pages().items():
        if (
            page.startswith("docs/")
            and re.search(r"\b(the|wire) contract\b(?! suite)", text)
            and page != "docs/contract.md"
        ):
            assert "contract.md" in text, page


def test_yaml_examples_are_yaml() -> None:
    for page, text in pages().items():
        for example in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            assert list(yaml.safe_load_all(example)), page
