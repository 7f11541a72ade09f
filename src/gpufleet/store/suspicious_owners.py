"""Find workloads whose stored rows are in several namespaces.

Earlier versions followed references to owners in other namespaces, which users can forge: the rows of such pods
have the uid, the name and the labels of the other namespace's workload. Owners that are in no namespace are the
harmless reason for such rows.
"""

from typing import NamedTuple

from gpufleet.store.postgres.database import Database

_FIND = """
SELECT c.name AS cluster, w.uid, min(k.name) AS kind, min(w.name) AS name,
    array_agg(DISTINCT n.name ORDER BY n.name) AS namespaces
FROM workload AS w
JOIN accounted_cluster AS c ON c.id = w.cluster
JOIN namespace_name AS n ON n.id = w.namespace
JOIN kind_name AS k ON k.id = w.kind
GROUP BY c.name, w.uid HAVING count(DISTINCT w.namespace) > 1
ORDER BY 1, 2
"""


class SuspiciousOwner(NamedTuple):
    """A workload with rows in several namespaces."""

    cluster: str
    uid: str
    kind: str
    name: str
    namespaces: tuple[str, ...]


async def find_suspicious_owners(database: Database) -> list[SuspiciousOwner]:
    """Return the workloads with rows in several namespaces."""
    return [
        SuspiciousOwner(row["cluster"], row["uid"], row["kind"], row["name"], tuple(row["namespaces"]))
        for row in await database.fetch(_FIND)
    ]
