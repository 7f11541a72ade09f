"""`/api/clusters`: which clusters there are, for those who let people choose one."""

import msgspec

from gpufleet.fleet.clusters import Clusters
from gpufleet.server.http.routing import Route, get


class ClusterName(msgspec.Struct):
    """A cluster that this server follows; the first of the list is the default one."""

    name: str


def cluster_name_routes(clusters: Clusters) -> list[Route]:
    """The list of clusters."""

    @get("/api/clusters", example=[ClusterName("prod"), ClusterName("lab")])
    async def list_clusters() -> list[ClusterName]:
        """The clusters of this server, the default one first."""
        return [ClusterName(cluster.name) for cluster in clusters]

    return [list_clusters]
