from tests.shim.nvml import nvml_shim

__all__ = ["nvml_shim"]
