"""One name for each GPU model, whatever a source calls it.

The same model is `NVIDIA-H100-80GB-HBM3` in a node label, `NVIDIA H100 80GB HBM3` for NVML and DCGM and `h100_80gb`
as a Slurm type. `canonical_model` maps every spelling to the name in `MODELS`: the vendor's product name with
underscores, as in the keys of `gpuAllocation`. A name that is not listed gets underscores and upper case, so that
its spellings still become one name.

A short name such as `h100` does not say which form of the model it is. It is a name of its own (`NVIDIA_H100`) that
gives way to a more exact name of the same GPU, and as a filter, price or request it stands for all of its forms.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

UNKNOWN_MODEL = "unknown"
"""The model of GPUs for which no source has a name."""


class GpuModel(NamedTuple):
    """A model and its other spellings, without vendor; case and separators do not matter."""

    name: str
    aliases: tuple[str, ...] = ()
    form_of: str = ""
    """The short name that may stand for it."""


MODELS = (
    GpuModel("NVIDIA_GB300"),
    GpuModel("NVIDIA_GB200"),
    GpuModel("NVIDIA_B300", ("B300 SXM6", "B300 SXM6 AC", "B300 288GB")),
    GpuModel("NVIDIA_B200", ("B200 SXM6", "B200 180GB", "B200 192GB")),
    GpuModel("NVIDIA_H200", ("H200 SXM", "H200 SXM5", "H200 141GB", "H200 141GB HBM3e", "H200 SXM5 141GB")),
    GpuModel("NVIDIA_H200_NVL", ("H200 NVL 141GB",)),
    GpuModel("NVIDIA_GH200"),
    GpuModel("NVIDIA_GH200_480GB", form_of="NVIDIA_GH200"),
    GpuModel("NVIDIA_GH200_120GB", form_of="NVIDIA_GH200"),
    GpuModel("NVIDIA_H100"),
    GpuModel(
        "NVIDIA_H100_80GB_HBM3",
        (
            "H100 80GB",
            "H100 SXM",
            "H100 SXM5",
            "H100 SXM5 80GB",
            "H100 80GB SXM",
            "H100 80GB SXM5",
            "H100 Mega 80GB",
        ),
        form_of="NVIDIA_H100",
    ),
    GpuModel("NVIDIA_H100_PCIe", ("H100 PCIe 80GB", "H100 80GB PCIe"), form_of="NVIDIA_H100"),
    GpuModel("NVIDIA_H100_NVL", ("H100 NVL 94GB",), form_of="NVIDIA_H100"),
    GpuModel("NVIDIA_H800"),
    GpuModel("NVIDIA_H20", ("H20 96GB", "H20 SXM5")),
    GpuModel("NVIDIA_A100"),
    GpuModel(
        "NVIDIA_A100_SXM4_80GB",
        ("A100 80GB", "A100 80G", "A100 SXM 80GB", "A100 80GB SXM", "A100 80GB SXM4"),
        form_of="NVIDIA_A100",
    ),
    GpuModel(
        "NVIDIA_A100_SXM4_40GB",
        ("A100 40GB", "A100 40G", "A100 SXM 40GB", "A100 40GB SXM", "A100 40GB SXM4"),
        form_of="NVIDIA_A100",
    ),
    GpuModel("NVIDIA_A100_80GB_PCIe", ("A100 PCIe 80GB",), form_of="NVIDIA_A100"),
    GpuModel("NVIDIA_A100_PCIe_40GB", ("A100 40GB PCIe",), form_of="NVIDIA_A100"),
    GpuModel("NVIDIA_A800_SXM4_80GB", ("A800", "A800 80GB")),
    GpuModel("NVIDIA_A40", ("A40 48GB",)),
    GpuModel("NVIDIA_A30", ("A30 24GB",)),
    GpuModel("NVIDIA_A16"),
    GpuModel("NVIDIA_A10", ("A10 24GB",)),
    GpuModel("NVIDIA_A10G", ("A10G 24GB",)),
    GpuModel("NVIDIA_A2"),
    GpuModel("NVIDIA_L40S", ("L40S 48GB",)),
    GpuModel("NVIDIA_L40", ("L40 48GB",)),
    GpuModel("NVIDIA_L4", ("L4 24GB",)),
    GpuModel("NVIDIA_Tesla_T4"),
    GpuModel("NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_V100_SXM2_16GB", ("V100 16GB", "V100 SXM2"), form_of="NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_V100_SXM2_32GB", ("V100 32GB",), form_of="NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_V100_SXM3_32GB", form_of="NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_V100_PCIE_16GB", form_of="NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_V100_PCIE_32GB", form_of="NVIDIA_Tesla_V100"),
    GpuModel("NVIDIA_Tesla_P100"),
    GpuModel("NVIDIA_Tesla_P100_SXM2_16GB", form_of="NVIDIA_Tesla_P100"),
    GpuModel("NVIDIA_Tesla_P100_PCIE_16GB", form_of="NVIDIA_Tesla_P100"),
    GpuModel("NVIDIA_GeForce_RTX_5090", ("RTX 5090", "RTX5090")),
    GpuModel("NVIDIA_GeForce_RTX_4090", ("RTX 4090", "RTX4090")),
    GpuModel("NVIDIA_GeForce_RTX_3090", ("RTX 3090", "RTX3090")),
    GpuModel("NVIDIA_RTX_A6000", ("A6000", "Quadro RTX A6000")),
    GpuModel("NVIDIA_RTX_A5000", ("A5000",)),
    GpuModel("NVIDIA_RTX_6000_Ada_Generation", ("RTX 6000 Ada", "RTX6000 Ada", "RTX6000Ada")),
    GpuModel("NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition", ("RTX PRO 6000", "RTX PRO 6000 Blackwell")),
    GpuModel("AMD_Instinct_MI355X", ("MI355X OAM",)),
    GpuModel("AMD_Instinct_MI350X", ("MI350X OAM",)),
    GpuModel("AMD_Instinct_MI325X", ("MI325X OAM", "0x74a5")),
    # The contract's examples of `gpuAllocation` have this name.
    GpuModel("AMD_Instinct_MI300X_OAM", ("MI300X", "0x74a1")),
    GpuModel("AMD_Instinct_MI300A", ("MI300A APU", "0x74a0")),
    GpuModel("AMD_Instinct_MI250X", ("MI250X OAM", "MI250X MI250")),
    GpuModel("AMD_Instinct_MI250", ("MI250 OAM",)),
    GpuModel("AMD_Instinct_MI210", ("0x740f",)),
    GpuModel("AMD_Instinct_MI100"),
    GpuModel("Intel_Data_Center_GPU_Max_1550", ("GPU Max 1550", "Max 1550")),
    GpuModel("Intel_Data_Center_GPU_Max_1100", ("GPU Max 1100", "Max 1100")),
    GpuModel("Intel_Data_Center_GPU_Flex_170", ("GPU Flex 170", "Flex 170")),
    GpuModel(UNKNOWN_MODEL),
)

_SEPARATORS = re.compile(r"[\s_/-]+")
_SHARING = re.compile(r"(?:_SHARED|_MIG_\d+G(?:\.\w+)*(?:\+\w+)*)+$")
"""What GPU feature discovery and NVML append for time-sliced GPUs and MIG instances."""
_BRANDS = {"NVIDIA", "TESLA", "GEFORCE", "AMD", "INSTINCT", "INTEL"}
_MAX_CACHED = 4096


def _upper(name: str) -> str:
    return _SHARING.sub("", "_".join(filter(None, _SEPARATORS.split(name.upper()))))


def _key(upper: str) -> str:
    return "_".join(word for word in upper.split("_") if word not in _BRANDS)


_NAMES = {_key(_upper(spelling)): model.name for model in MODELS for spelling in (model.name, *model.aliases)}
_SHORT = {model.name: model.form_of for model in MODELS if model.form_of}


@lru_cache(maxsize=_MAX_CACHED)
def canonical_model(name: str) -> str:
    """Return the one name of the model that a source calls `name`; empty if `name` has no words."""
    upper = _upper(name)
    return _NAMES.get(_key(upper), upper)


@lru_cache(maxsize=_MAX_CACHED)
def accepted_models(wanted: str) -> frozenset[str]:
    """Return the models that `wanted`, in any spelling, stands for: itself, and all forms of a short name."""
    model = canonical_model(wanted)
    return frozenset((model, *(name for name, short in _SHORT.items() if short == model)))


def more_exact(name: str, other: str) -> str:
    """Return `name`, or `other` if `name` is empty or the short name of `other`."""
    return other if not name or _SHORT.get(other) == name else name


def single_model(names: Iterable[str]) -> str:
    """Return the model if these names, where known, are of one model; else an empty text."""
    distinct = {name for name in names if name}
    distinct -= {_SHORT.get(name, "") for name in distinct}
    return distinct.pop() if len(distinct) == 1 else ""


def short_model(model: str) -> str:
    """Return the short name that stands for all forms of a model; empty if it has none."""
    return _SHORT.get(model, "")


def sum_by_model(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by canonical name, sorted, from counts in any spelling."""
    total: dict[str, int] = {}
    for name, count in counts.items():
        model = canonical_model(name)
        total[model] = total.get(model, 0) + count
    return dict(sorted(total.items()))
