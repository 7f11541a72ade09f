"""Normalize the path of a request once, before the gate and the router see it.

The server decodes `%2f` and `%2e` before this. Afterwards a path has one spelling: no `.` and `..`, no empty
segments at its start or end. So the gate can't be bypassed with a spelling that the router resolves. An empty
segment in the middle stays: `/api/workloads//metrics` has an empty uid, and is not the path of a uid `metrics`.
"""


def normalized(path: str) -> str:
    """Return `path` with its dot segments resolved, one slash at its start and none at its end."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    return "/" + "/".join(segments).strip("/")
