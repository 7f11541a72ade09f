"""Find the links of Markdown pages, and the anchors of their headings, as GitHub and the site make them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """A link or an image of a page."""

    text: str
    target: str
    is_image: bool

    @property
    def is_external(self) -> bool:
        """Whether it leads to another host."""
        return bool(re.match(r"[a-z]+:", self.target))

    @property
    def path(self) -> str:
        """The path without the anchor, empty for an anchor of the same page."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The anchor, empty without one."""
        return self.target.partition("#")[2]


def links(text: str) -> Iterator[Link]:
    """Yield the links of a page, without those in fenced blocks."""
    for found in _LINK.finditer(_FENCE.sub("", text)):
        yield Link(found[2], found[3], found[1] == "!")


def replace_links(text: str, replace: Callable[[Link], str | None]) -> str:
    """Return a page with other links: `replace` returns the new target, or None to leave only the text."""

    def one(found: re.Match[str]) -> str:
        link = Link(found[2], found[3], found[1] == "!")
        target = replace(link)
        return link.text if target is None else f"{found[1]}[{found[2]}]({target})"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(one, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(one, text[end:])])


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        slug = slugify(heading)
        number = 1
        while slug in found:
            slug, number = f"{slugify(heading)}-{number}", number + 1
        found.add(slug)
    return found


def slugify(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading; the same rule as GitHub's."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", separator)


def resolve(page: str, target: str) -> str:
    """Return the path in the repository that a relative link of `page` leads to."""
    parts: list[str] = []
    for part in (*Path(page).parent.parts, *target.split("/")):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
