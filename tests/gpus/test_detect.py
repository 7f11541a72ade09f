import pytest
from tests.shim.nvml import NvmlShim

from gpufleet.errors import DevicesUnavailable, SettingsError
from gpufleet.gpus.drivers.detect import health_rules, open_reader, reader_from_settings
from gpufleet.gpus.xid import HealthRules
from gpufleet.runtime.settings import DevicesSettings


def test_the_driver_that_lists_gpus_is_detected(nvml_shim: NvmlShim) -> None:
    reader = open_reader()
    assert reader.name.startswith("NVML")
    reader.close()


def test_a_machine_without_gpus_reports_what_was_tried(nvml_shim: NvmlShim) -> None:
    nvml_shim.set("count", 0)
    with pytest.raises(DevicesUnavailable, match=r"no GPU found.*lists no GPU; AMD GPUs can't be read"):
        open_reader()


async def test_the_settings_select_the_reader() -> None:
    reader = reader_from_settings(DevicesSettings(reader="simulated"))
    assert await reader.describe() == ("simulated GPUs", True)
    assert len(await reader.inventory()) == 8
    await reader.close()


def test_the_settings_and_the_rules_have_the_same_defaults() -> None:
    assert health_rules(DevicesSettings()) == HealthRules()
    assert health_rules(DevicesSettings(warn_xids=("48",))).warn_xids == {48}


def test_an_xid_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"devices\.warn_xids: 'all' is not an XID"):
        health_rules(DevicesSettings(warn_xids=("63", "all")))
