"""Node labels that name the GPU model."""

import re
from collections.abc import Mapping

from gpufleet.model.gpu_models import canonical_model

MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
)
TYPE_LABEL = "gpu-type"
"""The label by which claims select a model in the contract's examples; operators set it on nodes."""
_SHARING = re.compile(r"-(?:SHARED|MIG-.+)$")


def model_in(labels: Mapping[str, str]) -> str:
    """Return the GPU model that a node's labels name, or an empty text."""
    return next((canonical_model(labels[key]) for key in MODEL_LABELS if labels.get(key)), "")


def model_requested(*selectors: Mapping[str, str]) -> str:
    """Return the GPU model that node selectors request, or an empty text."""
    found = (model_in(labels) or canonical_model(labels.get(TYPE_LABEL, "")) for labels in selectors)
    return next(filter(None, found), "")


def with_canonical_models(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with model names that compare equal for all spellings of a model.

    Whether a node shares its GPUs is part of the label, and still matters.
    """
    return {key: _comparable(value) if key in MODEL_LABELS else value for key, value in labels.items()}


def _comparable(value: str) -> str:
    shared = _SHARING.search(value)
    return canonical_model(value) + (shared[0] if shared else "")
