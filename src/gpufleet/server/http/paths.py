"""Normalize the path of a request once, before the gate and the router see it.

The server decodes `%2f` and `%2e` before this. Afterwards a path has one spelling: no empty segments, no `.`
and `..`, no slash at its end. So the gate can't be bypassed with a spelling that the router resolves.
"""


def normalized(path: str) -> str:
    """Return `path` with its dot segments resolved, and single slashes between segments."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)
