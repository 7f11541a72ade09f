"""A stand-in for a vendor's container runtime, such as NVIDIA's in CDI mode; run as a program in place of runc.

containerd calls it for pods with the runtime class `nvidia`. It reads `NVIDIA_VISIBLE_DEVICES` of the container, adds
the device nodes of the CDI devices with these names to the OCI spec, and runs runc. As with NVIDIA's runtime, `all`
means every GPU, and an empty value, `void` or none means no GPU.

The example DRA driver only sets variables in the containers that it prepares. This runtime adds the device nodes of the
devices in these variables, which NVIDIA's driver lists in its CDI spec.

    vendor_runtime.py RUNC CDI_SPEC create --bundle DIRECTORY ...
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any


def main(runc: str, spec: str, arguments: list[str]) -> None:
    """Edit the spec of a new container and become runc."""
    if "create" in arguments:
        add_devices(Path(arguments[arguments.index("--bundle") + 1]) / "config.json", Path(spec))
    os.execv(runc, [runc, *arguments])


def add_devices(config: Path, cdi_spec: Path) -> None:
    """Add the devices that the container's environment names to its OCI spec."""
    oci = json.loads(config.read_text())
    environment = dict(entry.split("=", 1) for entry in oci["process"].get("env", ()))
    linux = oci.setdefault("linux", {})
    visible, cdi = environment.get("NVIDIA_VISIBLE_DEVICES", ""), json.loads(cdi_spec.read_text())
    for node in [*nodes(visible, cdi), *nodes(",".join(prepared(environment)), cdi)]:
        number = {"type": "c", "major": node["major"], "minor": node["minor"]}
        linux.setdefault("devices", []).append({**number, "path": node["path"], "fileMode": 0o666})
        rules = linux.setdefault("resources", {}).setdefault("devices", [])
        rules.append({**number, "allow": True, "access": "rwm"})
    config.write_text(json.dumps(oci))


def prepared(environment: dict[str, str]) -> list[str]:
    """Return the numbers of the devices that the example DRA driver has prepared for the container."""
    found = (re.fullmatch(r"GPU_DEVICE_GPU_(\d+)_RESOURCE_CLAIM", name) for name in environment)
    return [match[1] for match in found if match]


def nodes(visible: str, cdi: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the device nodes of the CDI devices that `visible` names; an unknown name is an error."""
    devices = {each["name"]: each["containerEdits"]["deviceNodes"] for each in cdi["devices"]}
    names = [] if visible in ("", "void", "none") else visible.split(",")
    if visible == "all":
        names = [name for name in devices if not name.isdigit()]
    if unknown := [name for name in names if name not in devices]:
        sys.exit(f"unresolvable CDI devices {', '.join(unknown)}")
    return [node for name in names for node in devices[name]]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
