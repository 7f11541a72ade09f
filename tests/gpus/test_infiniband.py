from pathlib import Path

from gpufleet.gpus.infiniband import PortMonitor, read_ports
from gpufleet.gpus.rules import Scope, Severity


def state(root: Path, device: str, port: int, text: str) -> None:
    folder = root / device / "ports" / str(port)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(text)


def test_a_port_that_went_down_is_a_finding_about_the_node(tmp_path: Path) -> None:
    state(tmp_path, "mlx5_0", 1, "4: ACTIVE\n")
    state(tmp_path, "mlx5_1", 1, "1: DOWN\n")
    watch = PortMonitor()
    assert read_ports(tmp_path) == {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}
    assert watch.check(read_ports(tmp_path)) is None, "a port that was never up is not in use"
    state(tmp_path, "mlx5_0", 1, "1: DOWN\n")
    finding = watch.check(read_ports(tmp_path))
    assert finding is not None
    assert finding.reason == "1 of 1 network ports are down: mlx5_0/1"
    assert (finding.scope, finding.severity) == (Scope.NODE, Severity.UNHEALTHY)
    state(tmp_path, "mlx5_0", 1, "4: ACTIVE\n")
    assert watch.check(read_ports(tmp_path)) is None


def test_a_removed_device_counts_as_down(tmp_path: Path) -> None:
    watch = PortMonitor()
    watch.check({"mlx5_0/1": "ACTIVE"})
    assert watch.check(read_ports(tmp_path)) is not None


def test_a_machine_without_infiniband_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "absent") == {}
