import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.kernel_log import KernelLog, KernelRing, open_kernel_log, parse_record, parse_xid

LINES = [
    (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        (79, "0000:3b:00.0", "pid=1234, name=python, GPU has fallen off the bus."),
    ),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", (14, "0000:03:00.0", "Channel 00000001")),
    ("NVRM: Xid (PCI:0001:C2:00.0): 48, DBE", (48, "0001:c2:00.0", "DBE")),
    (
        "[ 12.3] NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal XC0",
        (149, "0000:04:00.0", "NETIR_LINK_EVT Fatal XC0"),
    ),
    (
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        (154, "0000:01:00.0", "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7194, Uncontained: LTC TAG (0x2,0x0)",
        (95, "0000:01:00.0", "pid=7194, Uncontained: LTC TAG (0x2,0x0)"),
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 43, pid=9, name=a",
        (43, "0000:01:00.0", "pid=9, name=a"),
    ),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_an_xid_line_gives_code_address_and_text(line: str, expected: tuple[int, str, str]) -> None:
    event = parse_xid(line, 5.0)
    assert event is not None
    assert (event.code, event.pci_bus_id, event.message) == expected
    assert event.at == 5.0


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1234",
        "NVRM: Xid (PCI:nowhere): 79",
        "NVRM: Xid (PCI:0000:3b:00): none",
    ],
)
def test_other_lines_are_not_events(line: str) -> None:
    assert parse_xid(line, 5.0) is None


def test_a_record_has_its_own_time() -> None:
    event = parse_record("3,1045,5000000,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE\n SUBSYSTEM=pci\n", 1_000.0)
    assert event is not None
    assert (event.at, event.message) == (1_005.0, "DBE")


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_xid(text, 0.0)
    parse_record(text, 0.0)
    parse_record(f"3,1,1,-;NVRM: Xid ({text}", 0.0)


def test_each_record_is_returned_once_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    log = KernelLog(pipe, from_start=True, boot_time=lambda: 100.0)
    writer = os.open(pipe, os.O_WRONLY)
    try:
        assert log.events() == ()
        os.write(writer, b"3,1,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, off the bus\n")
        assert [(event.code, event.at) for event in log.events()] == [(79, 102.0)]
        assert log.events() == ()
    finally:
        os.close(writer)
        log.close()


def test_the_real_kernel_log_can_be_followed() -> None:
    try:
        log = KernelLog()
    except DevicesUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(log.events(), tuple)
    log.close()


def test_the_error_for_an_unreadable_log_names_the_capability(tmp_path: Path) -> None:
    with pytest.raises(DevicesUnavailable, match=r"No such file.*CAP_SYSLOG"):
        KernelLog(tmp_path / "absent")


def test_the_log_buffer_yields_only_what_is_new() -> None:
    lines = ["<4>[   10.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, gone"]
    ring = KernelRing(lambda: "\n".join(lines))
    assert ring.events() == ()
    lines.append("<6>[   11.000000] eth0: link up")
    lines.append("<4>[   12.500000] NVRM: Xid (PCI:0000:3c:00): 48, pid=2, text")
    assert [(event.code, event.message) for event in ring.events()] == [(48, "pid=2, text")]
    assert ring.events() == ()


def test_a_log_that_cannot_be_read_in_any_way_says_why(tmp_path: Path) -> None:
    def refused() -> str:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(DevicesUnavailable, match=r"No such file.*syslog\(2\): Operation not permitted"):
        open_kernel_log(lambda: KernelLog(tmp_path / "kmsg"), lambda: KernelRing(refused))
