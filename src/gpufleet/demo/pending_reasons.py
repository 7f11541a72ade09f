"""Why runs of the simulation are pending, in the words of the scheduler.

An inventory of the placement core follows the nodes and GPUs that the player writes. A run that fits has no
reason: the scheduler would bind it in a moment.
"""

import msgspec

from gpufleet.demo.objects.identities import Json
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.objects import Node
from gpufleet.placement import GangRefused, Inventory, Refused, place_gang
from gpufleet.scheduler.state import request_of
from gpufleet.scheduler.state.nodes import candidate_node


class PendingReasons:
    """The nodes of a simulation as its scheduler sees them."""

    def __init__(self) -> None:
        self._inventory = Inventory()
        self._nodes: dict[str, Node] = {}

    def put_node(self, node: Json) -> None:
        """Take a new or changed node; its GPUs come with `put_report`."""
        self._nodes[node["metadata"]["name"]] = msgspec.convert(node, Node)

    def put_report(self, report: Json) -> None:
        """Take the GpuNodeStatus of a known node."""
        found = msgspec.convert(report, GpuNodeStatus)
        self._inventory.put_node(candidate_node(self._nodes[found.spec.node_name], found, lambda _: True))

    def note(self, claim: GpuClaim, pods: int) -> str:
        """Return why a run is pending; empty if it fits."""
        request = request_of(claim)
        if claim.spec.gang_ref:
            gang = place_gang(self._inventory, [request] * pods)
            return f"gang {claim.spec.gang_ref}: {gang.summary}" if isinstance(gang, GangRefused) else ""
        verdict = self._inventory.place(request)
        return verdict.summary if isinstance(verdict, Refused) else ""
