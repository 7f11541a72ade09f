import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.gpus.health import Finding, HealthRules, HealthTracker, Severity, XidRemedy
from gpufleet.gpus.xid import judge_xid
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
    ledger = HealthTracker(rules)
    ledger.see_devices(GPUS, 10.0)
    ledger.see_readings(reading(n, 11.0) for n in range(4))
    return ledger


OUT = [46, 48, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158]
NVLINK = [74, *range(144, 151)]


@pytest.mark.parametrize("code", OUT)
def test_an_xid_of_the_table_puts_its_gpu_out(code: int) -> None:
    ledger = healthy()
    ledger.see_events([xid(code)])
    verdict = ledger.verdict("GPU-0")
    assert (verdict.health, verdict.since) == (Health.UNHEALTHY, 20.0)
    assert f"XID {code}" in verdict.reason
    assert verdict.remedy is not XidRemedy.NONE


@pytest.mark.parametrize("code", [code for code in OUT if code != 79])
def test_one_bad_gpu_leaves_the_others_in(code: int) -> None:
    ledger = healthy()
    ledger.see_events([xid(code, 2)])
    assert [v.health for v in ledger.verdicts().values()].count(Health.HEALTHY) == 3


def test_a_gpu_that_fell_off_the_bus_takes_the_node_out() -> None:
    ledger = healthy()
    ledger.see_events([xid(79, 2)])
    assert {v.health for v in ledger.verdicts().values()} == {Health.UNHEALTHY}
    assert ledger.verdict("GPU-2").reason == "XID 79: the GPU fell off the bus"
    assert ledger.verdict("GPU-0").reason == "GPU 2: XID 79: the GPU fell off the bus"
    assert ledger.verdict("GPU-2").remedy is XidRemedy.REBOOT


@pytest.mark.parametrize("code", [63, 92, 94, 109, 9999])
def test_a_warning_keeps_the_gpu_in_use_and_is_forgotten_after_an_hour(code: int) -> None:
    ledger = healthy()
    ledger.see_events([xid(code)])
    verdict = ledger.verdict("GPU-0")
    assert verdict.health is Health.HEALTHY
    assert any(f"XID {code}" in warning for warning in verdict.warnings)
    ledger.see_readings([reading(at=3619.0)])
    assert ledger.verdict("GPU-0").warnings != ()
    ledger.see_readings([reading(at=3621.0)])
    assert ledger.verdict("GPU-0").warnings == ()


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_the_programs_own_fault_says_nothing_of_the_gpu(code: int) -> None:
    ledger = healthy()
    before = ledger.verdicts()
    ledger.see_events([xid(code)])
    assert ledger.verdicts() == before


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
def test_an_nvlink_error_puts_the_gpu_out_only_when_fatal(code: int, message: str, health: Health) -> None:
    ledger = healthy()
    ledger.see_events([xid(code, message=message)])
    assert ledger.verdict("GPU-0").health is health


def test_the_bare_number_of_an_xid_takes_nothing_back_that_its_text_said() -> None:
    ledger = healthy()
    ledger.see_events([xid(74, message="NVLink: fatal error detected on link 6")])
    ledger.see_events([xid(74, at=20.1)])
    assert ledger.verdict("GPU-0").health is Health.UNHEALTHY
    other_way_round = healthy()
    other_way_round.see_events([xid(74), xid(74, at=20.1, message="NVLink: fatal error detected on link 6")])
    assert other_way_round.verdict("GPU-0").health is Health.UNHEALTHY


def test_the_warn_list_is_the_operators() -> None:
    stern = HealthRules(warn_xids=frozenset({48}))
    assert judge_xid(94, rules=stern) == Finding(
        "xid-94", Severity.OUT, "XID 94: contained memory error", XidRemedy.RESET
    )
    mild = judge_xid(48, rules=stern)
    assert mild is not None
    assert mild.severity is Severity.WARN


@pytest.mark.parametrize(
    ("text", "remedy", "others"),
    [
        ("0x1 (GPU Reset Required)", XidRemedy.RESET, Health.HEALTHY),
        ("0x2 (Node Reboot Required)", XidRemedy.REBOOT, Health.UNHEALTHY),
        ("0x3 (Drain P2P)", XidRemedy.DRAIN, Health.HEALTHY),
        ("0x4 (Drain and Reset)", XidRemedy.DRAIN_AND_RESET, Health.HEALTHY),
    ],
)
def test_the_recovery_action_is_obeyed_and_taken_back(text: str, remedy: XidRemedy, others: Health) -> None:
    ledger = healthy()
    ledger.see_events([xid(154, message=f"GPU recovery action changed from 0x0 (None) to {text}")])
    assert (ledger.verdict("GPU-0").health, ledger.verdict("GPU-0").remedy) == (Health.UNHEALTHY, remedy)
    assert ledger.verdict("GPU-1").health is others
    ledger.see_events([xid(154, at=30.0, message="GPU recovery action changed from 0x1 (x) to 0x0 (None)")])
    assert {v.health for v in ledger.verdicts().values()} == {Health.HEALTHY}


def test_a_recovery_action_in_the_readings_counts_as_much_as_the_xid() -> None:
    ledger = healthy()
    ledger.see_readings([reading(recovery_action="reset")])
    assert ledger.verdict("GPU-0").remedy is XidRemedy.RESET
    ledger.see_readings([reading(at=30.0, recovery_action="none")])
    assert ledger.verdict("GPU-0").health is Health.HEALTHY


def test_a_gpu_stays_out_until_its_counters_start_again() -> None:
    ledger = healthy()
    ledger.see_events([xid(48)])
    ledger.see_readings([reading(at=30.0)])
    assert ledger.verdict("GPU-0").health is Health.UNHEALTHY
    ledger.see_readings([reading(at=40.0, energy_joules=3.0)])
    verdict = ledger.verdict("GPU-0")
    assert (verdict.health, verdict.since, verdict.reason) == (Health.HEALTHY, 40.0, "")
    assert [change.health for change in ledger.changes("GPU-0")] == [
        Health.HEALTHY,
        Health.UNHEALTHY,
        Health.HEALTHY,
    ]


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [({"remap_pending": True}, XidRemedy.RESET), ({"remap_failed": True}, XidRemedy.REPLACE)],
)
def test_a_condition_holds_for_as_long_as_readings_show_it(
    condition: dict[str, bool], remedy: XidRemedy
) -> None:
    ledger = healthy()
    ledger.see_readings([reading(**condition)])
    assert (ledger.verdict("GPU-0").health, ledger.verdict("GPU-0").remedy) == (Health.UNHEALTHY, remedy)
    ledger.see_readings([reading(at=25.0, remap_pending=None, remap_failed=None)])
    assert ledger.verdict("GPU-0").health is Health.UNHEALTHY, (
        "a flag that can't be read is not a flag that is down"
    )
    ledger.see_readings([reading(at=30.0)])
    assert ledger.verdict("GPU-0").health is Health.HEALTHY


def test_a_lost_gpu_is_out_and_comes_back() -> None:
    ledger = healthy()
    lost = replace(GPUS[1], fault="the GPU is lost")
    ledger.see_devices([GPUS[0], lost, *GPUS[2:]], 20.0)
    ledger.see_events([xid(79, 1, 20.5)])
    assert ledger.verdict("GPU-1").health is Health.UNHEALTHY
    ledger.see_devices(GPUS, 30.0)
    assert {v.health for v in ledger.verdicts().values()} == {Health.HEALTHY}
    assert ledger.verdict("GPU-1").since == 30.0


def test_a_silent_driver_makes_gpus_unknown_but_not_the_broken_ones_better() -> None:
    ledger = healthy()
    ledger.see_events([xid(48, 3)])
    ledger.see_silence("the driver does not answer", 30.0)
    assert [ledger.verdict(g.uuid).health for g in GPUS] == [Health.UNKNOWN] * 3 + [Health.UNHEALTHY]
    assert ledger.verdict("GPU-0").reason == "the driver does not answer"
    ledger.see_readings(reading(n, 40.0) for n in range(4))
    assert [ledger.verdict(g.uuid).health for g in GPUS] == [Health.HEALTHY] * 3 + [Health.UNHEALTHY]
    assert ledger.verdict("GPU-0").since == 40.0


def test_nobody_has_seen_an_unknown_gpu() -> None:
    assert HealthTracker().verdict("GPU-9").health is Health.UNKNOWN


def test_an_event_by_bus_address_finds_its_gpu_even_if_it_comes_first() -> None:
    ledger = HealthTracker()
    ledger.see_events([DeviceEvent(EventKind.XID, 48, 5.0, pci_bus_id="0000:02:00.0")])
    ledger.see_devices(GPUS, 10.0)
    assert ledger.verdict("GPU-2").health is Health.UNHEALTHY
    assert ledger.verdict("GPU-1").health is Health.HEALTHY


def test_amd_blocks_above_the_threshold_put_the_gpu_out() -> None:
    amd = Device(index=0, uuid="GPU-0", vendor=Vendor.AMD)
    for threshold, health in [(0, Health.UNHEALTHY), (2, Health.HEALTHY)]:
        ledger = HealthTracker(HealthRules(ecc_threshold=threshold))
        ledger.see_devices([amd], 10.0)
        ledger.see_readings([reading(ecc_uncorrected=3, ecc_uncorrected_blocks=(("UMC", 2), ("GFX", 1)))])
        assert ledger.verdict("GPU-0").health is health


@pytest.mark.parametrize(("fatal", "health"), [(True, Health.UNHEALTHY), (False, Health.HEALTHY)])
def test_a_fatal_error_record_puts_an_amd_gpu_out(fatal: bool, health: Health) -> None:
    ledger = healthy()
    ledger.see_events([DeviceEvent(EventKind.CPER, 1, 20.0, uuid="GPU-0", message="UMC", fatal=fatal)])
    assert ledger.verdict("GPU-0").health is health


def test_a_finding_about_the_node_concerns_every_gpu_and_passes() -> None:
    ledger = healthy()
    ledger.see_node("infiniband", Finding("infiniband", Severity.OUT, "port mlx5_0/1 is down"), 20.0)
    assert {v.reason for v in ledger.verdicts().values()} == {"port mlx5_0/1 is down"}
    ledger.see_node("infiniband", None, 30.0)
    assert {v.health for v in ledger.verdicts().values()} == {Health.HEALTHY}


def test_an_operator_can_forgive_an_event_but_not_a_condition() -> None:
    ledger = healthy()
    ledger.see_events([xid(48)])
    ledger.see_readings([reading(remap_pending=True)])
    ledger.forgive("GPU-0", 30.0)
    assert ledger.verdict("GPU-0").health is Health.HEALTHY
    ledger.see_readings([reading(at=31.0, remap_pending=True)])
    assert ledger.verdict("GPU-0").reason == "row remapping waits for a reset"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.integers(0, 3), st.sampled_from([13, 48, 63, 74, 79, 94, 119, 154])),
        st.tuples(st.just("reading"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("lost"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("silence"), st.just(0), st.booleans()),
    ),
    max_size=25,
)


def play(ledger: HealthTracker, story: list[tuple[str, int, int | bool]]) -> float:
    at = 20.0
    for what, gpu, detail in story:
        at += 1
        if what == "xid":
            ledger.see_events([xid(int(detail), gpu, at)])
        elif what == "reading":
            ledger.see_readings([reading(gpu, at, remap_pending=bool(detail))])
        elif what == "lost":
            fault = "lost" if detail else None
            ledger.see_devices([replace(GPUS[gpu], fault=fault)], at)
        else:
            ledger.see_silence("silent", at)
    return at


@settings(max_examples=100, deadline=None)
@given(steps)
def test_whatever_happened_a_reset_and_a_clean_look_make_every_gpu_healthy(
    story: list[tuple[str, int, int | bool]],
) -> None:
    ledger = healthy()
    at = play(ledger, story)
    ledger.see_devices(GPUS, at + 1)
    ledger.see_readings(reading(n, at + 2, energy_joules=0.5) for n in range(4))
    assert {v.health for v in ledger.verdicts().values()} == {Health.HEALTHY}


@settings(max_examples=100, deadline=None)
@given(steps)
def test_the_time_of_a_verdict_is_the_time_of_its_last_change_of_health(
    story: list[tuple[str, int, int | bool]],
) -> None:
    ledger = healthy()
    at = play(ledger, story)
    for gpu in GPUS:
        changes = ledger.changes(gpu.uuid)
        assert changes[-1] == ledger.verdict(gpu.uuid)
        assert all(change.since <= at for change in changes)
        for before, after in itertools.pairwise(changes):
            assert before != after
            if before.health is after.health:
                assert before.since == after.since
            else:
                assert before.since < after.since


@settings(max_examples=100, deadline=None)
@given(steps)
def test_an_unhealthy_gpu_always_says_why(story: list[tuple[str, int, int | bool]]) -> None:
    ledger = healthy()
    play(ledger, story)
    for verdict in ledger.verdicts().values():
        assert bool(verdict.reason) == (verdict.health is not Health.HEALTHY)


def test_an_xid_outlives_the_process_that_heard_it_until_the_gpu_was_reset() -> None:
    published = healthy()
    published.see_events(
        [xid(48, 0, at=1000.0), xid(74, 1, at=1000.0, message="fatal"), xid(94, 2, at=1000.0)]
    )
    for reset, health in ((False, Health.UNHEALTHY), (True, Health.HEALTHY)):
        ledger = HealthTracker()
        ledger.see_devices(GPUS, 5000.0)
        for gpu in GPUS:
            said = published.verdict(gpu.uuid)
            ledger.recall(gpu.uuid, said.reason, said.since)
        energy = 100 * 60.0 if reset else 100 * 4000.0  # 100 W for a minute, or since the error
        ledger.see_readings(reading(n, 5000.0, energy_joules=energy, power_watts=100) for n in range(4))
        assert [v.health for v in ledger.verdicts().values()] == [health, health, *[Health.HEALTHY] * 2]
        if not reset:
            assert ledger.verdict("GPU-0").reason == "XID 48: uncorrectable ECC error"
            assert ledger.verdict("GPU-0").since == 1000.0
            ledger.see_readings([reading(0, 5010.0, energy_joules=1.0, power_watts=100)])
        assert (ledger.verdict("GPU-0").health, ledger.verdict("GPU-0").mended) == (
            Health.HEALTHY,
            "it was reset",
        )


def test_a_recalled_gpu_without_an_energy_counter_stays_out() -> None:
    ledger = HealthTracker()
    ledger.see_devices(GPUS, 5000.0)
    ledger.recall("GPU-0", "XID 95: uncontained memory error; XID 48: uncorrectable ECC error", 1000.0)
    ledger.recall("GPU-1", "GPU 0: XID 79: the GPU fell off the bus", 1000.0)
    ledger.recall("GPU-2", "fatal error record: DRAM; bank 3", 1000.0)
    ledger.recall("GPU-3", "row remapping waits for a reset", 1000.0)
    ledger.see_readings(reading(n, 5000.0, energy_joules=None) for n in range(4))
    out, well = Health.UNHEALTHY, Health.HEALTHY
    assert [v.health for v in ledger.verdicts().values()] == [out, well, out, well]
    assert "XID 95" in ledger.verdict("GPU-0").reason
    assert "XID 48" in ledger.verdict("GPU-0").reason


def test_what_mended_a_gpu_is_said() -> None:
    ledger = healthy()
    assert ledger.verdict("GPU-0").mended == ""
    ledger.see_devices([replace(GPUS[0], fault="lost")], 20.0)
    ledger.see_devices([GPUS[0]], 30.0)
    assert (ledger.verdict("GPU-0").mended, ledger.verdict("GPU-0").since) == ("it is back", 30.0)
    ledger.see_readings([reading(0, 40.0, remap_pending=True)])
    ledger.see_readings([reading(0, 50.0)])
    assert ledger.verdict("GPU-0").mended == "what was wrong is gone"
    ledger.see_silence("silent", 60.0)
    ledger.see_readings([reading(0, 70.0)])
    assert ledger.verdict("GPU-0").mended == "it can be read again"


@pytest.mark.parametrize(("energy", "health"), [(50.0, Health.HEALTHY), (1e9, Health.UNHEALTHY)])
def test_an_event_that_is_told_late_is_over_if_the_gpu_was_reset_since(energy: float, health: Health) -> None:
    ledger = HealthTracker()
    ledger.see_devices(GPUS, 90_000.0)
    told = [(True, 1_000.0), (False, 90_000.0)]
    ledger.see_events(DeviceEvent(EventKind.CPER, 1, at, uuid="GPU-0", fatal=fatal) for fatal, at in told)
    ledger.see_readings([reading(0, 90_001.0, energy_joules=energy, power_watts=100.0)])
    assert ledger.verdict("GPU-0").health is health
