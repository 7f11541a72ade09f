from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.rules import Finding, Remedy, Scope, Severity
from gpufleet.gpus.xid import HealthRules, classify_xid
from gpufleet.model.device import Device, DeviceEvent, DeviceReading, EventKind, Vendor
from gpufleet.model.node import Health

GPUS = tuple(
    Device(index=n, uuid=f"GPU-{n}", vendor=Vendor.NVIDIA, pci_bus_id=f"0000:{n:02x}:00.0") for n in range(4)
)


def reading(gpu: int = 0, at: float = 20.0, **values: object) -> DeviceReading:
    clean = DeviceReading(
        uuid=f"GPU-{gpu}",
        index=gpu,
        at=at,
        energy_joules=1000 + at,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
    )
    return replace(clean, **values)  # type: ignore[arg-type]


def xid(code: int, gpu: int = 0, at: float = 20.0, message: str = "") -> DeviceEvent:
    return DeviceEvent(EventKind.XID, code, at, uuid=f"GPU-{gpu}", message=message)


def healthy(rules: HealthRules | None = None) -> HealthTracker:
    tracker = HealthTracker(rules)
    tracker.observe_devices(GPUS, 10.0)
    tracker.observe_readings(reading(n, 11.0) for n in range(4))
    return tracker


UNHEALTHY = [46, 48, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158]
NVLINK = [74, *range(144, 151)]


@pytest.mark.parametrize("code", UNHEALTHY)
def test_a_serious_xid_makes_its_gpu_unhealthy(code: int) -> None:
    tracker = healthy()
    tracker.observe_events([xid(code)])
    verdict = tracker.verdict("GPU-0")
    assert (verdict.health, verdict.since) == (Health.UNHEALTHY, 20.0)
    assert f"XID {code}" in verdict.reason
    assert verdict.remedy is not Remedy.NONE


@pytest.mark.parametrize("code", [code for code in UNHEALTHY if code != 79])
def test_one_unhealthy_gpu_does_not_affect_the_others(code: int) -> None:
    tracker = healthy()
    tracker.observe_events([xid(code, 2)])
    assert [v.health for v in tracker.verdicts().values()].count(Health.HEALTHY) == 3


def test_a_gpu_that_fell_off_the_bus_makes_the_whole_node_unhealthy() -> None:
    tracker = healthy()
    tracker.observe_events([xid(79, 2)])
    assert {v.health for v in tracker.verdicts().values()} == {Health.UNHEALTHY}
    assert tracker.verdict("GPU-2").reason == "XID 79: the GPU fell off the bus"
    assert tracker.verdict("GPU-0").reason == "GPU 2: XID 79: the GPU fell off the bus"
    assert tracker.verdict("GPU-2").remedy is Remedy.REBOOT


@pytest.mark.parametrize("code", [63, 92, 94, 109, 9999])
def test_a_warning_keeps_the_gpu_healthy_and_expires_after_an_hour(code: int) -> None:
    tracker = healthy()
    tracker.observe_events([xid(code)])
    verdict = tracker.verdict("GPU-0")
    assert verdict.health is Health.HEALTHY
    assert any(f"XID {code}" in warning for warning in verdict.warnings)
    tracker.observe_readings([reading(at=3619.0)])
    assert tracker.verdict("GPU-0").warnings != ()
    tracker.observe_readings([reading(at=3621.0)])
    assert tracker.verdict("GPU-0").warnings == ()


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_an_xid_of_the_application_is_ignored(code: int) -> None:
    tracker = healthy()
    before = tracker.verdicts()
    tracker.observe_events([xid(code)])
    assert tracker.verdicts() == before


@pytest.mark.parametrize("code", NVLINK)
@pytest.mark.parametrize(
    ("message", "health"),
    [
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 00", Health.UNHEALTHY),
        ("NVLink: fatal error detected on link 6", Health.UNHEALTHY),
        ("NETIR_LINK_EVT Nonfatal XC0 i0 Link 00", Health.HEALTHY),
        ("a non-fatal error on link 6", Health.HEALTHY),
        ("", Health.HEALTHY),
    ],
)
def test_an_nvlink_error_makes_the_gpu_unhealthy_only_when_fatal(
    code: int, message: str, health: Health
) -> None:
    tracker = healthy()
    tracker.observe_events([xid(code, message=message)])
    assert tracker.verdict("GPU-0").health is health


def test_an_xid_without_text_does_not_downgrade_an_earlier_one_with_text() -> None:
    tracker = healthy()
    tracker.observe_events([xid(74, message="NVLink: fatal error detected on link 6")])
    tracker.observe_events([xid(74, at=20.1)])
    assert tracker.verdict("GPU-0").health is Health.UNHEALTHY
    other_way_round = healthy()
    other_way_round.observe_events(
        [xid(74), xid(74, at=20.1, message="NVLink: fatal error detected on link 6")]
    )
    assert other_way_round.verdict("GPU-0").health is Health.UNHEALTHY


def test_the_warn_list_is_configurable() -> None:
    stern = HealthRules(warn_xids=frozenset({48}))
    assert classify_xid(94, rules=stern) == Finding(
        "xid-94", Severity.UNHEALTHY, "XID 94: contained memory error", Remedy.RESET
    )
    mild = classify_xid(48, rules=stern)
    assert mild is not None
    assert mild.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "remedy", "others"),
    [
        ("0x1 (GPU Reset Required)", Remedy.RESET, Health.HEALTHY),
        ("0x2 (Node Reboot Required)", Remedy.REBOOT, Health.UNHEALTHY),
        ("0x3 (Drain P2P)", Remedy.DRAIN, Health.HEALTHY),
        ("0x4 (Drain and Reset)", Remedy.DRAIN_AND_RESET, Health.HEALTHY),
    ],
)
def test_a_recovery_action_applies_until_it_is_withdrawn(text: str, remedy: Remedy, others: Health) -> None:
    tracker = healthy()
    tracker.observe_events([xid(154, message=f"GPU recovery action changed from 0x0 (None) to {text}")])
    assert (tracker.verdict("GPU-0").health, tracker.verdict("GPU-0").remedy) == (Health.UNHEALTHY, remedy)
    assert tracker.verdict("GPU-1").health is others
    tracker.observe_events(
        [xid(154, at=30.0, message="GPU recovery action changed from 0x1 (x) to 0x0 (None)")]
    )
    assert {v.health for v in tracker.verdicts().values()} == {Health.HEALTHY}


def test_a_recovery_action_in_readings_counts_like_the_xid() -> None:
    tracker = healthy()
    tracker.observe_readings([reading(recovery_action="reset")])
    assert tracker.verdict("GPU-0").remedy is Remedy.RESET
    tracker.observe_readings([reading(at=30.0, recovery_action="none")])
    assert tracker.verdict("GPU-0").health is Health.HEALTHY


def test_a_gpu_stays_unhealthy_until_its_counters_restart() -> None:
    tracker = healthy()
    tracker.observe_events([xid(48)])
    tracker.observe_readings([reading(at=30.0)])
    assert tracker.verdict("GPU-0").health is Health.UNHEALTHY
    tracker.observe_readings([reading(at=40.0, energy_joules=3.0)])
    verdict = tracker.verdict("GPU-0")
    assert (verdict.health, verdict.since, verdict.reason) == (Health.HEALTHY, 40.0, "")


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [({"remap_pending": True}, Remedy.RESET), ({"remap_failed": True}, Remedy.REPLACE)],
)
def test_a_condition_lasts_as_long_as_readings_show_it(condition: dict[str, bool], remedy: Remedy) -> None:
    tracker = healthy()
    tracker.observe_readings([reading(**condition)])
    assert (tracker.verdict("GPU-0").health, tracker.verdict("GPU-0").remedy) == (Health.UNHEALTHY, remedy)
    tracker.observe_readings([reading(at=25.0, remap_pending=None, remap_failed=None)])
    assert tracker.verdict("GPU-0").health is Health.UNHEALTHY, (
        "a flag that can't be read is not a flag that is down"
    )
    tracker.observe_readings([reading(at=30.0)])
    assert tracker.verdict("GPU-0").health is Health.HEALTHY


def test_a_lost_gpu_is_unhealthy_until_it_is_back() -> None:
    tracker = healthy()
    lost = replace(GPUS[1], fault="the GPU is lost")
    tracker.observe_devices([GPUS[0], lost, *GPUS[2:]], 20.0)
    tracker.observe_events([xid(79, 1, 20.5)])
    assert tracker.verdict("GPU-1").health is Health.UNHEALTHY
    tracker.observe_devices(GPUS, 30.0)
    assert {v.health for v in tracker.verdicts().values()} == {Health.HEALTHY}
    assert tracker.verdict("GPU-1").since == 30.0


def test_an_unresponsive_driver_makes_only_healthy_gpus_unknown() -> None:
    tracker = healthy()
    tracker.observe_events([xid(48, 3)])
    tracker.mark_unresponsive("the driver does not answer", 30.0)
    assert [tracker.verdict(g.uuid).health for g in GPUS] == [Health.UNKNOWN] * 3 + [Health.UNHEALTHY]
    assert tracker.verdict("GPU-0").reason == "the driver does not answer"
    tracker.observe_readings(reading(n, 40.0) for n in range(4))
    assert [tracker.verdict(g.uuid).health for g in GPUS] == [Health.HEALTHY] * 3 + [Health.UNHEALTHY]
    assert tracker.verdict("GPU-0").since == 40.0


def test_a_gpu_that_was_never_observed_is_unknown() -> None:
    assert HealthTracker().verdict("GPU-9").health is Health.UNKNOWN


def test_an_event_by_bus_address_finds_its_gpu_even_if_it_arrives_first() -> None:
    tracker = HealthTracker()
    tracker.observe_events([DeviceEvent(EventKind.XID, 48, 5.0, pci_bus_id="0000:02:00.0")])
    tracker.observe_devices(GPUS, 10.0)
    assert tracker.verdict("GPU-2").health is Health.UNHEALTHY
    assert tracker.verdict("GPU-1").health is Health.HEALTHY


def test_amd_blocks_with_errors_make_the_gpu_unhealthy() -> None:
    amd = Device(index=0, uuid="GPU-0", vendor=Vendor.AMD)
    for errors, health in [(1, Health.UNHEALTHY), (0, Health.HEALTHY)]:
        tracker = HealthTracker()
        tracker.observe_devices([amd], 10.0)
        tracker.observe_readings(
            [reading(ecc_uncorrected=errors, ecc_uncorrected_blocks=(("UMC", 0), ("GFX", errors)))]
        )
        assert tracker.verdict("GPU-0").health is health


@pytest.mark.parametrize(("fatal", "health"), [(True, Health.UNHEALTHY), (False, Health.HEALTHY)])
def test_a_fatal_error_record_makes_an_amd_gpu_unhealthy(fatal: bool, health: Health) -> None:
    tracker = healthy()
    tracker.observe_events([DeviceEvent(EventKind.CPER, 1, 20.0, uuid="GPU-0", message="UMC", fatal=fatal)])
    assert tracker.verdict("GPU-0").health is health


def test_a_node_finding_applies_to_every_gpu_until_it_is_cleared() -> None:
    tracker = healthy()
    tracker.set_node_finding(
        "infiniband",
        Finding("infiniband", Severity.UNHEALTHY, "port mlx5_0/1 is down", scope=Scope.NODE),
        20.0,
    )
    assert {v.reason for v in tracker.verdicts().values()} == {"port mlx5_0/1 is down"}
    tracker.set_node_finding("infiniband", None, 30.0)
    assert {v.health for v in tracker.verdicts().values()} == {Health.HEALTHY}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.integers(0, 3), st.sampled_from([13, 48, 63, 74, 79, 94, 119, 154])),
        st.tuples(st.just("reading"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("lost"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("silence"), st.just(0), st.booleans()),
    ),
    max_size=25,
)


def play(tracker: HealthTracker, story: list[tuple[str, int, int | bool]]) -> Iterator[float]:
    """Apply one step of the story after another and yield the time of each."""
    at = 20.0
    for what, gpu, detail in story:
        at += 1
        if what == "xid":
            tracker.observe_events([xid(int(detail), gpu, at)])
        elif what == "reading":
            tracker.observe_readings([reading(gpu, at, remap_pending=bool(detail))])
        elif what == "lost":
            fault = "lost" if detail else None
            tracker.observe_devices([replace(GPUS[gpu], fault=fault)], at)
        else:
            tracker.mark_unresponsive("silent", at)
        yield at


@settings(max_examples=100, deadline=None)
@given(steps)
def test_after_any_history_a_reset_and_good_readings_make_every_gpu_healthy(
    story: list[tuple[str, int, int | bool]],
) -> None:
    tracker = healthy()
    at = max(play(tracker, story), default=20.0)
    tracker.observe_devices(GPUS, at + 1)
    tracker.observe_readings(reading(n, at + 2, energy_joules=0.5) for n in range(4))
    assert {v.health for v in tracker.verdicts().values()} == {Health.HEALTHY}


@settings(max_examples=100, deadline=None)
@given(steps)
def test_since_is_the_time_of_the_last_change_of_health(
    story: list[tuple[str, int, int | bool]],
) -> None:
    tracker = healthy()
    before = tracker.verdicts()
    for at in play(tracker, story):
        after = tracker.verdicts()
        for uuid, verdict in after.items():
            changed = verdict.health is not before[uuid].health
            assert verdict.since == (at if changed else before[uuid].since)
        before = after


@settings(max_examples=100, deadline=None)
@given(steps)
def test_an_unhealthy_gpu_always_has_a_reason(story: list[tuple[str, int, int | bool]]) -> None:
    tracker = healthy()
    list(play(tracker, story))
    for verdict in tracker.verdicts().values():
        assert bool(verdict.reason) == (verdict.health is not Health.HEALTHY)


def test_an_xid_survives_a_restart_of_the_process_until_the_gpu_was_reset() -> None:
    published = healthy()
    published.observe_events(
        [xid(48, 0, at=1000.0), xid(74, 1, at=1000.0, message="fatal"), xid(94, 2, at=1000.0)]
    )
    for reset, health in ((False, Health.UNHEALTHY), (True, Health.HEALTHY)):
        tracker = HealthTracker()
        tracker.observe_devices(GPUS, 5000.0)
        for gpu in GPUS:
            verdict = published.verdict(gpu.uuid)
            tracker.restore(gpu.uuid, verdict.reason, verdict.since)
        energy = 100 * 60.0 if reset else 100 * 4000.0  # 100 W for a minute, or since the error
        tracker.observe_readings(reading(n, 5000.0, energy_joules=energy, power_watts=100) for n in range(4))
        assert [v.health for v in tracker.verdicts().values()] == [health, health, *[Health.HEALTHY] * 2]
        if not reset:
            assert tracker.verdict("GPU-0").reason == "XID 48: uncorrectable ECC error"
            assert tracker.verdict("GPU-0").since == 1000.0
            tracker.observe_readings([reading(0, 5010.0, energy_joules=1.0, power_watts=100)])
        assert (tracker.verdict("GPU-0").health, tracker.verdict("GPU-0").recovery_reason) == (
            Health.HEALTHY,
            "it was reset",
        )


def test_a_restored_gpu_without_an_energy_counter_stays_unhealthy() -> None:
    tracker = HealthTracker()
    tracker.observe_devices(GPUS, 5000.0)
    tracker.restore("GPU-0", "XID 95: uncontained memory error; XID 48: uncorrectable ECC error", 1000.0)
    tracker.restore("GPU-1", "GPU 0: XID 79: the GPU fell off the bus", 1000.0)
    tracker.restore("GPU-2", "fatal error record: DRAM; bank 3", 1000.0)
    tracker.restore("GPU-3", "row remapping is pending, reset required", 1000.0)
    tracker.observe_readings(reading(n, 5000.0, energy_joules=None) for n in range(4))
    out, well = Health.UNHEALTHY, Health.HEALTHY
    assert [v.health for v in tracker.verdicts().values()] == [out, well, out, well]
    assert "XID 95" in tracker.verdict("GPU-0").reason
    assert "XID 48" in tracker.verdict("GPU-0").reason


def test_the_verdict_says_why_a_gpu_recovered() -> None:
    tracker = healthy()
    assert tracker.verdict("GPU-0").recovery_reason == ""
    tracker.observe_devices([replace(GPUS[0], fault="lost")], 20.0)
    tracker.observe_devices([GPUS[0]], 30.0)
    assert (tracker.verdict("GPU-0").recovery_reason, tracker.verdict("GPU-0").since) == ("it is back", 30.0)
    tracker.observe_readings([reading(0, 40.0, remap_pending=True)])
    tracker.observe_readings([reading(0, 50.0)])
    assert tracker.verdict("GPU-0").recovery_reason == "the problem is gone"
    tracker.mark_unresponsive("silent", 60.0)
    tracker.observe_readings([reading(0, 70.0)])
    assert tracker.verdict("GPU-0").recovery_reason == "the driver answers again"


@pytest.mark.parametrize(("energy", "health"), [(50.0, Health.HEALTHY), (1e9, Health.UNHEALTHY)])
def test_a_late_event_is_dropped_if_the_gpu_was_reset_since(energy: float, health: Health) -> None:
    tracker = HealthTracker()
    tracker.observe_devices(GPUS, 90_000.0)
    records = [(True, 1_000.0), (False, 90_000.0)]
    tracker.observe_events(
        DeviceEvent(EventKind.CPER, 1, at, uuid="GPU-0", fatal=fatal) for fatal, at in records
    )
    tracker.observe_readings([reading(0, 90_001.0, energy_joules=energy, power_watts=100.0)])
    assert tracker.verdict("GPU-0").health is health
