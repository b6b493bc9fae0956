"""Hooks of MkDocs: the repository's other pages, generated references, links between all of them, and checks.

Pages are written for the repository, where links lead to files. Here a link to a page leads to that page, a link to a
folder to its index, and other files of the repository are copied into the site.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import checks
import references

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Pages of the repository outside its folder `docs`, and where they are in the site."""
_LOG = logging.getLogger("mkdocs.hooks.checks")
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`, and those that are generated."""
    made = {page: (ROOT / source).read_text() for source, page in PAGES.items()}
    made["adr/README.md"] = references.decisions(ROOT / "docs" / "adr")
    made["reference/commands.md"] = references.commands()
    made["reference/job-file.md"] = references.job_file()
    made["reference/rest.md"] = references.rest()
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for target in _linked_files(files):
        files.append(File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target)))
    for page in checks.pages(ROOT):
        for fault in checks.faults(page, str(page.relative_to(ROOT))):
            _LOG.warning("%s", fault)  # with --strict, a warning fails the build
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """Lead links to where their targets are in the site."""
    uri = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        target = _in_site(uri, match[1])
        return match[0] if target is None else os.path.relpath(target, Path(uri).parent) + (match[2] or "")

    return _LINK.sub(led, markdown)


def _in_site(uri: str, link: str) -> str | None:
    """Where the target of a page's link is in the site; None to leave the link as it is."""
    source = _SOURCES.get(uri, f"docs/{uri}")
    target = os.path.normpath(os.path.join(os.path.dirname(source), link))
    if target in PAGES:
        return PAGES[target]
    if (ROOT / target).is_dir():
        target = f"{target}/README.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"files/{target}" if (ROOT / target).is_file() else None


def _linked_files(files: Files) -> set[str]:
    """Files of the repository that pages link to and that are no pages."""
    found = set()
    for file in files.documentation_pages():
        for match in _LINK.finditer(file.content_string):
            target = _in_site(file.src_uri, match[1])
            if target is not None and target.startswith("files/"):
                found.add(target.removeprefix("files/"))
    return found
