"""Where the agents of a cluster answer, from the EndpointSlices of their Service.

The chart gpu-scheduler makes that Service; Kubernetes copies its labels to the slices. The node of an endpoint comes
from Kubernetes, so an agent can't report GPUs of another node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpufleet.kubernetes.objects import EndpointSlice

LABELS = "app.kubernetes.io/part-of=gpufleet,app.kubernetes.io/component=agent"
"""Selects the slices."""

_PORT = "metrics"


@dataclass(frozen=True, order=True)
class AgentEndpoint:
    """The address of one agent."""

    node: str
    url: str


def agent_endpoints(slices: Iterable[EndpointSlice]) -> list[AgentEndpoint]:
    """Return the ready agents, one per node, ordered by node."""
    found: dict[str, AgentEndpoint] = {}
    for each in slices:
        port = next((port.port for port in each.ports or () if port.name == _PORT), None)
        for endpoint in each.endpoints or ():
            if port is None or not endpoint.node_name or not endpoint.addresses:
                continue
            if endpoint.conditions.ready is False:
                continue
            host = endpoint.addresses[0]
            host = f"[{host}]" if ":" in host else host
            found[endpoint.node_name] = AgentEndpoint(endpoint.node_name, f"http://{host}:{port}/metrics")
    return sorted(found.values())
