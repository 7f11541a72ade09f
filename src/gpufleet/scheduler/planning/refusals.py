"""Say why no node can take a pod, with a reason for every node that has GPUs.

kube-scheduler offers only the nodes that pass its own checks. The others are counted with the
reason that excludes them, as far as it is known here, so that the sentence accounts for all nodes.
"""

from collections.abc import Sequence

import numpy as np

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits, GangRefused, Reason, Refused, Request
from gpufleet.placement.inventory import refused
from gpufleet.scheduler.state.ledger import Ledger
from gpufleet.scheduler.state.node_resources import PODS, Room
from gpufleet.scheduler.state.nodes import exclusion

_RESOURCES = {"cpu": Reason.CPU, "memory": Reason.MEMORY, PODS: Reason.PODS}


def with_all_nodes(ledger: Ledger, pod: Pod, verdict: Refused) -> Refused:
    """Return the refusal with the reasons of the nodes that were not considered, too."""
    considered = set(verdict.names)
    others = [name for name in ledger.cluster.nodes if name not in considered]
    if not others:
        return verdict
    room = Room(ledger.resources)
    codes = [_exclusion(ledger, room, pod, verdict.request, name) for name in others]
    return refused(
        verdict.request,
        (*verdict.names, *others),
        np.concatenate([verdict.codes, np.array(codes, np.uint8)]),
    )


def with_reserved(ledger: Ledger, verdict: Refused) -> Refused:
    """Return the refusal with the nodes that would fit if nothing were reserved for other units."""
    if not ledger.reservations:
        return verdict
    with ledger.reservations.ignoring(ledger.reservations):
        fit = set(ledger.cluster.feasible(verdict.request))
    if fit.isdisjoint(verdict.names):
        return verdict
    codes = [
        Reason.RESERVED if name in fit else code
        for name, code in zip(verdict.names, verdict.codes, strict=True)
    ]
    return refused(verdict.request, verdict.names, np.array(codes, np.uint8))


def sentence(ledger: Ledger, pod: Pod, verdict: Refused) -> str:
    """Return why no node can take a pod, with all nodes, and which GPUs are draining."""
    draining = ledger.draining()
    some = ", ".join(draining[:4]) + (" …" if len(draining) > 4 else "")
    return with_all_nodes(ledger, pod, verdict).summary + (f"; draining: {some}" if draining else "")


def gang_sentence(ledger: Ledger, name: str, pods: Sequence[Pod], verdict: GangRefused) -> str:
    """Return why a gang does not start."""
    if verdict.label:
        # Only one group of nodes was looked at.
        why, where = with_reserved(ledger, verdict.why), f" on nodes with the same {verdict.label}"
    else:
        why, where = with_all_nodes(ledger, pods[verdict.stuck], with_reserved(ledger, verdict.why)), ""
    return f"gang {name}: {verdict.placed} of {verdict.size} members fit{where}; next member: {why.summary}"


def _exclusion(ledger: Ledger, room: Room, pod: Pod, request: Request, name: str) -> Reason:
    node = ledger.nodes.get(name)
    if node is None:
        return Reason.UNKNOWN_NODE
    if not request.match_labels <= ledger.cluster.nodes[name].labels.items():
        return Reason.SELECTOR
    if (reason := exclusion(node, pod)) is not Reason.NONE:
        return reason
    if is_delivered_by_claim(pod) and name not in ledger.resource_claims.nodes():
        return Reason.NO_DEVICES
    if short := room.shortage(name, pod):
        return _RESOURCES.get(short, Reason.OTHER_RESOURCE)
    return Reason.OTHER


def reserved_suffix(places: Sequence[Fits]) -> str:
    """Return which GPUs are reserved, as the end of a sentence."""
    if not places:
        return ""
    nodes = list(dict.fromkeys(fits.node for fits in places))
    number = sum(len(fits.gpus) for fits in places)
    some = ", ".join(nodes[:4]) + (" …" if len(nodes) > 4 else "")
    return f"; {number} GPU{'s' if number > 1 else ''} of {some} reserved until all are free"
