"""Peak TFLOPS of dense matrix multiplication by GPU model and precision.

The figures come from the vendors' data sheets, without sparsity. The driver sees an MI250 or MI250X as
two GPUs, so their figures are for one half.
"""

import re

Precision = int
"""Bits of a number: 4, 8, 16, or 19 for TF32."""

PEAKS: tuple[tuple[str, dict[Precision, float]], ...] = (
    ("GB300", {16: 2500, 8: 5000}),
    ("GB200", {16: 2500, 8: 5000, 4: 10000, 19: 1250}),
    ("B300", {16: 2250, 8: 4500}),
    ("B200", {16: 2250, 8: 4500, 4: 9000, 19: 1120}),
    ("H200 NVL", {16: 835.5, 8: 1671, 19: 417.5}),
    ("H200", {16: 989.4, 8: 1978.9, 19: 494.7}),
    ("GH200", {16: 989.4, 8: 1978.9, 19: 494.7}),
    ("H100 PCIE", {16: 756, 8: 1513, 19: 378}),
    ("H100 NVL", {16: 835.5, 8: 1671, 19: 417.5}),
    ("H100", {16: 989.4, 8: 1978.9, 19: 494.7}),
    ("H800", {16: 989.4, 8: 1978.9, 19: 494.7}),
    ("H20", {16: 148, 8: 296, 19: 74}),
    ("A100", {16: 312, 19: 156}),
    ("A800", {16: 312, 19: 156}),
    ("A40", {16: 149.7, 19: 74.8}),
    ("A30", {16: 165, 19: 82}),
    ("A10", {16: 125, 19: 62.5}),
    ("L40S", {16: 362.05, 8: 733, 19: 183}),
    ("L40", {16: 181.05, 8: 362, 19: 90.5}),
    ("L4", {16: 121, 8: 242.5, 19: 60}),
    ("V100 PCIE", {16: 112}),
    ("V100", {16: 125}),
    ("T4", {16: 65}),
    ("MI355X", {16: 2516.6, 8: 5033.2, 4: 10066.3}),
    ("MI350X", {16: 2306.9, 8: 4613.7, 4: 9227.5}),
    ("MI325X", {16: 1307.4, 8: 2614.9, 19: 653.7}),
    ("MI300X", {16: 1307.4, 8: 2614.9, 19: 653.7}),
    ("MI300A", {16: 980.6, 8: 1961.2, 19: 490.3}),
    ("MI250X", {16: 191.5}),
    ("MI250", {16: 181.05}),
    ("MI210", {16: 181}),
)
"""Words that the name of a model must contain, more specific entries first."""


def peak_tflops(model: str, precision: Precision = 16) -> float | None:
    """Return the peak of one GPU; None for a model or precision that the table does not list."""
    words = set(re.split(r"[\s_/-]+", model.upper()))
    for name, peaks in PEAKS:
        if words.issuperset(name.split()):
            return peaks.get(precision)
    return None
