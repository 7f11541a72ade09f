"""Logs as a kubelet writes them: rotated, truncated, interleaved, endless."""

import gc
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.agent import pod_logs
from gpufleet.agent.pod_logs import Follower, PodLogs
from gpufleet.kubernetes.objects import Container, ObjectMeta, OwnerReference, Pod, PodSpec
from gpufleet.training.log_patterns import LogPattern
from gpufleet.training.log_reader import LogReader
from gpufleet.training.user_patterns import compile_user_patterns

LINE = " iteration       {step}/    1000 | elapsed time per iteration (ms): 512.0 | lm loss: {loss} |"


def pod(name: str = "train", uid: str = "u1", owner: str = "", made: datetime | None = None) -> Pod:
    owners = (OwnerReference(kind="Job", uid=owner, controller=True),) if owner else ()
    meta = ObjectMeta(name=name, namespace="jobs", uid=uid, owner_references=owners, creation_timestamp=made)
    return Pod(metadata=meta, spec=PodSpec(node_name="n", containers=(Container(name="main"),)))


def write(
    root: Path, text: str, *, uid: str = "u1", restarts: int = 0, tag: str = "F", second: int = 0
) -> Path:
    path = root / f"jobs_train_{uid}" / "main" / f"{restarts}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(f"2026-01-01T00:00:{second:02}.123456789Z stdout {tag} {text}\n")
    return path


def numbers(logs: PodLogs) -> dict[str, tuple[str, float, object]]:
    (family,) = logs.metrics()
    return {s.labels["metric"]: (s.labels["workload_uid"], s.value, s.timestamp) for s in family.samples}


def followed(root: Path, own: Sequence[LogPattern] = (), now: float = 1767225660.0) -> PodLogs:
    """The lines of these tests are from the first minute of 2026."""
    return PodLogs(root, tuple, frozenset, own, clock=lambda: now)


def test_the_numbers_of_a_job_are_read_with_the_time_of_their_line(tmp_path: Path) -> None:
    logs = followed(tmp_path)
    write(tmp_path, LINE.format(step=1, loss=2.5), second=1)
    write(tmp_path, LINE.format(step=2, loss=2.25), second=2)
    logs.read([pod(owner="job-uid")], {"u1"})
    found = numbers(logs)
    assert found["loss"] == ("job-uid@jobs", 2.25, 1767225602.123456)
    assert found["step"][1] == 2
    logs.close()


def test_a_number_is_served_for_as_long_as_prometheus_accepts_it(tmp_path: Path) -> None:
    write(tmp_path, LINE.format(step=1, loss=2.5), second=1)
    for minutes, served in ((20, True), (40, False)):
        logs = followed(tmp_path, now=1767225600.0 + 60 * minutes)
        logs.read([pod()], {"u1"})
        assert ("loss" in numbers(logs)) is served
        logs.close()


def test_a_line_in_pieces_is_one_line(tmp_path: Path) -> None:
    logs = followed(tmp_path)
    whole = LINE.format(step=7, loss=1.5)
    write(tmp_path, whole[:40], tag="P")
    write(tmp_path, whole[40:], tag="F")
    logs.read([pod()], {"u1"})
    assert numbers(logs)["loss"][:2] == ("u1", 1.5)
    logs.close()


def test_rotation_and_restarts_lose_nothing(tmp_path: Path) -> None:
    logs = followed(tmp_path)
    path = write(tmp_path, LINE.format(step=1, loss=3.0))
    logs.read([pod()], {"u1"})
    write(tmp_path, LINE.format(step=2, loss=2.0))
    path.rename(path.with_name("0.log.20260101-000000"))
    write(tmp_path, LINE.format(step=3, loss=1.0))
    logs.read([pod()], {"u1"})
    assert numbers(logs)["step"][1] == 2
    logs.read([pod()], {"u1"})
    assert numbers(logs)["step"][1] == 3
    write(tmp_path, LINE.format(step=4, loss=0.5), restarts=1)
    logs.read([pod()], {"u1"})
    assert numbers(logs)["step"][1] == 4
    logs.close()


def test_only_logs_of_pods_with_gpus_are_read_and_files_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    logs = followed(tmp_path)
    write(tmp_path, LINE.format(step=1, loss=3.0))
    logs.read([pod()], set())
    assert numbers(logs) == {}
    logs.read([pod()], {"u1"})
    assert numbers(logs)
    logs.read([], {"u1"})
    assert len(os.listdir("/proc/self/fd")) == before


def test_unrelated_lines_and_garbage_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "hello")
    path.write_bytes(path.read_bytes() + b"\xff\xfe \n\n x\nnot-a-time stdout F loss: 1\n" + b"a" * 300_000)
    logs = followed(tmp_path)
    logs.read([pod()], {"u1"})
    logs.read([pod()], {"u1"})
    assert numbers(logs) == {}
    logs.close()


def test_an_unreadable_log_does_not_affect_others(tmp_path: Path) -> None:
    (tmp_path / "jobs_train_u0" / "main" / "0.log").mkdir(parents=True)  # reading it fails, as on a bad disk
    write(tmp_path, LINE.format(step=1, loss=3.0))
    logs = followed(tmp_path)
    for _ in range(2):
        logs.read([pod(uid="u0"), pod()], {"u0", "u1"})
    assert numbers(logs)["loss"][1] == 3.0
    logs.close()


def test_a_reader_that_lags_skips_ahead(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"old\n")
    follower = Follower(path)
    assert list(follower.lines()) == [b"old"]
    with path.open("ab") as file:
        file.truncate(3 * pod_logs.MAX_LAG)
        file.seek(0, 2)
        file.write(b"\nnew\n")
    seen = [line for _ in range(40) for line in follower.lines()]
    assert seen[-1] == b"new"
    follower.close()


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"one\ntwo\n")
    follower = Follower(path)
    assert list(follower.lines()) == [b"one", b"two"]
    path.write_bytes(b"three\n")
    assert list(follower.lines()) == [b"three"]
    follower.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["write", "half", "rotate", "read"]), st.integers(0, 9)), max_size=40)
)
def test_every_line_is_read_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.log"
        path.touch()
        follower = Follower(path)
        written: list[bytes] = []
        seen: list[bytes] = []
        pending = b""
        for number, (what, size) in enumerate(steps):
            if what == "write":
                line = pending + f"{number}".encode() * (size + 1)
                with path.open("ab") as file:
                    file.write(line[len(pending) :] + b"\n")
                written.append(line)
                pending = b""
            elif what == "half":
                part = b"h" * (size + 1)
                with path.open("ab") as file:
                    file.write(part)
                pending += part
            elif what == "rotate" and not pending:
                seen += follower.lines()
                path.rename(path.with_name(f"0.log.{number}"))
                path.touch()
                seen += follower.lines()
            else:
                seen += follower.lines()
        seen += [*follower.lines(), *follower.lines()]
        follower.close()
        assert seen == written


def test_lines_that_match_a_users_pattern_are_read(tmp_path: Path) -> None:
    own = compile_user_patterns([r"^update (?P<step>\d+) xent=(?P<loss>[\d.]+)"])
    logs = followed(tmp_path, own)
    write(tmp_path, "update 12 xent=0.75")
    logs.read([pod()], {"u1"})
    assert {name: value for name, (_, value, _) in numbers(logs).items()} == {"step": 12, "loss": 0.75}
    logs.close()


def test_the_last_lines_of_a_pod_are_read_and_served_until_they_are_old(tmp_path: Path) -> None:
    now = 1767225660.0
    logs = PodLogs(tmp_path, tuple, frozenset, clock=lambda: now)
    path = write(tmp_path, LINE.format(step=1, loss=3.0))
    logs.read([pod()], {"u1"})
    write(tmp_path, LINE.format(step=2, loss=1.5))
    path.unlink()  # a pod that is deleted takes its logs with it
    logs.read([], set())
    assert numbers(logs)["loss"] == ("u1", 1.5, 1767225600.123456)
    now += pod_logs.SERVED_FOR
    assert numbers(logs) == {}


def test_ended_pods_use_bounded_memory(tmp_path: Path) -> None:
    logs = followed(tmp_path)
    for number in range(2 * pod_logs.MAX_ENDED_PODS):
        write(tmp_path, LINE.format(step=1, loss=number), uid=f"u{number}")
        logs.read([pod(uid=f"u{number}")], {f"u{number}"})
    logs.read([], set())
    (family,) = logs.metrics()
    served = {sample.labels["pod_uid"] for sample in family.samples}
    assert len(served) == pod_logs.MAX_ENDED_PODS
    assert f"u{2 * pod_logs.MAX_ENDED_PODS - 1}" in served


def test_the_last_lines_before_a_restart_are_read(tmp_path: Path) -> None:
    logs = followed(tmp_path)
    write(tmp_path, LINE.format(step=1, loss=3.0))
    logs.read([pod()], {"u1"})
    write(tmp_path, LINE.format(step=2, loss=2.0))
    write(tmp_path, "hello again", restarts=1)
    logs.read([pod()], {"u1"})
    assert numbers(logs)["step"][1] == 2
    logs.close()


def test_a_new_agent_reads_only_the_tail_of_old_logs(tmp_path: Path) -> None:
    began = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    for age, seen in ((timedelta(hours=1), False), (timedelta(hours=-1), True)):
        folder = tmp_path / str(age)
        write(folder, LINE.format(step=1, loss=3.0))
        write(folder, "x" * 2 * pod_logs.CHUNK)
        logs = PodLogs(folder, tuple, frozenset, clock=began.timestamp)
        logs.read([], set())  # the pods of the node are not listed yet
        logs.read([pod(made=began - age)], {"u1"})
        assert ("loss" in numbers(logs)) is seen
        logs.close()


def test_lines_in_another_format_use_no_memory(tmp_path: Path) -> None:
    before = sum(isinstance(each, LogReader) for each in gc.get_objects())
    path = write(tmp_path, LINE.format(step=1, loss=3.0))
    with path.open("a") as file:
        for step in range(2000):
            file.write(f'{{"log":"iteration {step} of 2000 loss: 1.5\\n","stream":"stdout"}}\n')
    logs = followed(tmp_path)
    logs.read([pod()], {"u1"})
    assert numbers(logs)["loss"][1] == 3.0
    assert sum(isinstance(each, LogReader) for each in gc.get_objects()) - before == 1
    logs.close()
