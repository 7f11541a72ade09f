"""Parse label selectors as kubectl takes them: `team=nlp,tier in (a, b),!old`."""

import re
from collections.abc import Callable, Mapping

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_KEY = r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,315}[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9_.-]{0,63}"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*)?(?P<key>{_KEY})\s*"
    rf"(?:(?P<equals>==?|!=)\s*(?P<value>{_VALUE})|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*(?:,|$)"
)


def parse_label_selector(text: str) -> Selector:
    """Return a check for labels; an empty selector accepts all. Raise ValueError for a wrong one."""
    terms: list[Selector] = []
    position = 0
    while position < len(text):
        found = _TERM.match(text, position)
        if found is None or (found["absent"] and (found["equals"] or found["set"])):
            raise ValueError(
                f"{text[position : position + 64].strip()!r} is not a label selector; write key=value, key!=value, "
                "key in (a, b), key notin (a, b), key or !key, separated by commas"
            )
        terms.append(_term(found))
        position = found.end()
    return lambda labels: all(term(labels) for term in terms)


def _term(found: "re.Match[str]") -> Selector:
    key = found["key"]
    if found["absent"]:
        return lambda labels: key not in labels
    if found["equals"] is None and found["set"] is None:
        return lambda labels: key in labels
    values = {found["value"]} if found["equals"] else {each.strip() for each in found["values"].split(",")}
    if found["equals"] == "!=" or found["set"] == "notin":
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values
