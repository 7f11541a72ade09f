"""The core looks at all nodes in few named places: everything else is answered by counts and buckets."""

import ast
import re
from pathlib import Path

import gpufleet.queueing

_ALL_NODES = re.compile(
    r"(snapshot|self)\.(counts|states|occupancy|free|shapes|classes|overlays)\b(?!\[|\.get|\.items\(\)\[)"
    r"|len\((self\._)?snapshot\)|\bspecs\b|domains\.of\b"
)
ALLOWED = {
    "snapshot.Snapshot.__init__": "the nodes are added",
    "snapshot.Snapshot.recount": "a need was added",
    "snapshot.Snapshot.domain_counts": "the domains of a level are counted the first time",
    "ends.Ends.__init__": "all times are unknown",
    "ends._by_bound": "shares and MIG instances: one comparison for each node, for a reservation",
    "evictions.EvictionSearch._nodes_with": "a guarantee for certain models",
}


def loops(path: Path) -> set[str]:
    """Return the functions of a module with a loop over what is kept for each node."""
    found = set[str]()

    def visit(node: ast.AST, name: str) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{name}.{node.name}"
        iterated = [node.iter] if isinstance(node, ast.For | ast.comprehension) else []
        if any(_ALL_NODES.search(ast.unparse(each)) for each in iterated):
            found.add(name)
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(ast.parse(path.read_text()), path.stem)
    return found


def test_no_loop_over_all_nodes_outside_the_named_places() -> None:
    folder = Path(gpufleet.queueing.__file__).parent
    found = set().union(*(loops(path) for path in folder.glob("*.py") if path.stem != "tables"))
    assert found == ALLOWED.keys(), "count instead of searching, or name the place with its reason"
