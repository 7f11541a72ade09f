"""MkDocs hooks: add the Markdown pages outside `docs/` and the references to the site, and adapt links between them.

Pages link to files of the repository, as GitHub shows them. On the site, a link to a page leads to that page. Of a link
to any other file only its text is left, because the site has no such file.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dashboard.tools.openapi import openapi_document
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docsite.api_reference import api_reference
from docsite.cli_reference import cli_reference
from docsite.links import Link, replace_links, resolve

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/report-a-vulnerability.md",
    "charts/gpu-scheduler/README.md": "project/chart-gpu-scheduler.md",
    "charts/gpufleet/README.md": "project/chart-gpufleet.md",
    "examples/trace/README.md": "project/example-trace.md",
    "mixin/README.md": "project/mixin.md",
    "packages/kubelite/README.md": "project/kubelite.md",
    "README.md": "index.md",
}
"""Where pages of the repository are on the site. The site has its own start page instead of README.md."""

REFERENCES: Mapping[str, Callable[[], str]] = {
    "api-reference.md": lambda: api_reference(openapi_document()),
    "cli-reference.md": cli_reference,
}
"""Pages that are made from the code for the site. In `docs/` a short page says where to read them."""

_SOURCES = {site: source for source, site in OUTSIDE.items() if site != "index.md"}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages outside `docs/`."""
    for site, source in _SOURCES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, site, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Make the page if it is a reference, and adapt its links to the site."""
    here: str = page.file.src_uri
    if reference := REFERENCES.get(here):
        markdown = reference()
    source = _SOURCES.get(here, f"docs/{here}")

    def target_on_site(link: Link) -> str | None:
        if link.is_external or not link.path:
            return link.target
        found = resolve(source, link.path)
        on_site = OUTSIDE.get(found, found.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            on_site = f"{on_site}/README.md"
        if files.get_file_from_path(on_site) is None:
            return None
        relative = os.path.relpath(on_site, Path(here).parent)
        return relative + (f"#{link.anchor}" if link.anchor else "")

    return replace_links(markdown, target_on_site)
