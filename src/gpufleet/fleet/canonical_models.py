"""Give the GPUs of nodes their canonical model names, where nodes and devices enter the fleet."""

import msgspec

from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices


def with_canonical_model(node: FleetNode) -> FleetNode:
    """Return the node under the canonical name of its model."""
    model = canonical_model(node.gpu_model)
    return node if model == node.gpu_model else msgspec.structs.replace(node, gpu_model=model)


def with_canonical_models(devices: NodeDevices) -> NodeDevices:
    """Return the devices under the canonical names of their models."""
    if all(gpu.model == canonical_model(gpu.model) for gpu in devices.gpus):
        return devices
    return msgspec.structs.replace(devices, gpus=tuple(_canonical(gpu) for gpu in devices.gpus))


def _canonical(gpu: FleetGpu) -> FleetGpu:
    return msgspec.structs.replace(gpu, model=canonical_model(gpu.model))
