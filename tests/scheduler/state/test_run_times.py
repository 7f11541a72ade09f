"""When pods are expected to end."""

from datetime import UTC, datetime, timedelta

from gpufleet.kubernetes.objects import ObjectMeta, Pod, PodSpec, PodStatus
from gpufleet.scheduler.state.run_times import declared_end, expected_end, lost_work

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CREATED = NOW - timedelta(hours=3)
STARTED = NOW - timedelta(hours=1)


def pod(node: str, declared: int | None = None, started: datetime | None = None) -> Pod:
    meta = ObjectMeta(name="p", creation_timestamp=CREATED)
    return Pod(meta, PodSpec(node_name=node, active_deadline_seconds=declared), PodStatus(start_time=started))


def test_a_pod_that_waited_for_hours_and_was_just_placed_has_not_run_yet() -> None:
    assert expected_end(pod(""), NOW) == NOW + timedelta(minutes=10)
    assert declared_end(pod("", 60), NOW) == NOW + timedelta(minutes=1)
    assert lost_work(pod(""), 8, NOW) == 0


def test_a_pod_is_expected_to_run_as_long_again_as_it_has_run() -> None:
    assert expected_end(pod("a", started=STARTED), NOW) == NOW + timedelta(hours=1)
    assert expected_end(pod("a", started=NOW), NOW) == NOW + timedelta(minutes=10)
    assert expected_end(pod("a", 7200, STARTED), NOW) == NOW + timedelta(hours=1)
