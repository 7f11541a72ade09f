"""Query parameters that several routes of the clusters family share."""

from typing import Annotated

import msgspec
from msgspec import Meta

ClusterName = Annotated[str, Meta(max_length=253, description="Cluster; the default one if not given.")]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000, description="Page number, from 1.")]
PageSize = Annotated[int, Meta(ge=1, le=1000, description="Rows per page.")]


class InCluster(msgspec.Struct, rename="camel"):
    """Which cluster is asked about."""

    cluster: ClusterName = ""


class PagedInCluster(InCluster, rename="camel"):
    """Which page, of which cluster."""

    page_num: PageNumber = 1
    page_size: PageSize = 10
