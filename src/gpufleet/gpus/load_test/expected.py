"""What a healthy GPU reaches in the load test.

Memory bandwidths are from the vendors' data sheets, in GB/s. A healthy H200 was measured at 0.90 of it for
writing and 0.93 for reading, and at 0.88 of PCIe 5.0 x16; `SHARE` of the data sheet is required.
"""

import re

SHARE = 0.8
"""The required share of the bandwidth in the data sheet."""

TENSOR_SHARE = 0.4
"""The required share of the peak of the tensor cores.

The test uses instructions that every GPU since Ampere has. An H200 reaches 0.65 of its peak with them.
"""

_MEMORY_GBPS: tuple[tuple[str, float], ...] = (
    ("GB300", 8000),
    ("GB200", 8000),
    ("B300", 8000),
    ("B200", 8000),
    ("GH200", 4000),
    ("H200", 4800),
    ("H100 PCIE", 2039),
    ("H100 NVL", 3938),
    ("H100", 3352),
    ("H800", 3352),
    ("H20", 4000),
    ("A100 80GB PCIE", 1935),
    ("A100 SXM4 80GB", 2039),
    ("A100", 1555),
    ("A800", 1935),
    ("A40", 696),
    ("A30", 933),
    ("A10", 600),
    ("L40S", 864),
    ("L40", 864),
    ("L4", 300),
    ("V100", 900),
    ("T4", 320),
)
"""Words that the name of a model must contain, more specific entries first."""

_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one PCIe lane in one direction, by generation."""


def memory_gbps(model: str) -> float | None:
    """Return the memory bandwidth that a GPU of the model must reach; None for an unknown model."""
    words = set(re.split(r"[\s_/-]+", model.upper()))
    for name, bandwidth in _MEMORY_GBPS:
        if words.issuperset(name.split()):
            return SHARE * bandwidth
    return None


def pcie_gbps(generation: int | None, width: int | None) -> float | None:
    """Return the bandwidth that copies over a link must reach; None if the link is unknown."""
    lane = _LANE_GBPS.get(generation or 0)
    return SHARE * lane * width if lane is not None and width else None
