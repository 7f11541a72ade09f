"""One read of this machine's GPUs as a table or as JSON."""

import json
from typing import Any

from gpufleet.agent.monitor import Observation
from gpufleet.model.device import Device, DeviceReading
from gpufleet.model.gpu_models import canonical_model

NONE = "-"
_WIDE = ("UUID", "ISLAND", "PCI", "REASON")


def gpu_table(observation: Observation, *, wide: bool = False) -> str:
    """Return a line per GPU, aligned; more columns with `wide`."""
    rows = [_cells(observation, device) for device in observation.devices]
    if not rows:
        return "No GPUs found.\n"
    headers = [name for name in rows[0] if wide or name not in _WIDE]
    cells = [headers, *([row[name] for name in headers] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(headers))]
    lines = ["  ".join(text.ljust(size) for text, size in zip(line, widths, strict=True)) for line in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def gpus_json(observation: Observation) -> str:
    """Return the GPUs as a JSON list."""
    return json.dumps([_object(observation, device) for device in observation.devices], indent=4)


def _cells(observation: Observation, device: Device) -> dict[str, str]:
    reading = _reading(observation, device)
    verdict = observation.verdicts.get(device.uuid)
    position = observation.positions.get(device.uuid)
    used, total = reading.memory_used_bytes, reading.memory_total_bytes or device.memory_bytes
    return {
        "GPU": str(device.index),
        "MODEL": canonical_model(device.model) if device.model else NONE,
        "HEALTH": verdict.health.value if verdict else NONE,
        "UTIL": _number(reading.utilization_percent, "%"),
        "MEMORY": f"{_gib(used)}/{_gib(total)}Gi" if total else NONE,
        "TEMP": _number(reading.temperature_celsius, "C"),
        "POWER": _number(reading.power_watts, "W"),
        "PROCESSES": str(sum(each.uuid == device.uuid for each in observation.processes)),
        "UUID": device.uuid,
        "ISLAND": position.island or NONE if position else NONE,
        "PCI": device.pci_bus_id or NONE,
        "REASON": (verdict.reason if verdict else "") or NONE,
    }


def _object(observation: Observation, device: Device) -> dict[str, Any]:
    reading, verdict = _reading(observation, device), observation.verdicts.get(device.uuid)
    return {
        "index": device.index,
        "uuid": device.uuid,
        "model": canonical_model(device.model) if device.model else None,
        "health": verdict.health.value if verdict else None,
        "healthReason": verdict.reason if verdict else None,
        "utilizationPercent": reading.utilization_percent,
        "memoryUsedBytes": reading.memory_used_bytes,
        "memoryTotalBytes": reading.memory_total_bytes or device.memory_bytes,
        "temperatureCelsius": reading.temperature_celsius,
        "powerWatts": reading.power_watts,
    }


def _reading(observation: Observation, device: Device) -> DeviceReading:
    found = (each for each in observation.readings if each.uuid == device.uuid)
    return next(found, DeviceReading(device.uuid, device.index, 0.0))


def _gib(amount: int | None) -> str:
    return NONE if amount is None else f"{amount / 1024**3:.0f}"


def _number(value: float | None, unit: str) -> str:
    return NONE if value is None else f"{value:.0f}{unit}"
