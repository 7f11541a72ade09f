"""Check the system after all faults are repaired; each check reports what it observed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from e2e.chaos import audit
from e2e.chaos.faults import COMPONENTS, Chaos
from e2e.chaos.load import CLAIMS, Load
from e2e.chaos.queues import Owners
from e2e.node import resource_claims
from e2e.system import System, Users
from gpufleet.kubernetes.annotations import CLAIM

READY_WITHIN = 60.0
SHARE = 500
TOLERANCE_S = 4
"""Allowed difference of holding times: the times in a pod's status are whole seconds, at start and end."""

HOURS = "/api/v1/gpu-aggregation/workloads/hourly-stats"
Line = dict[str, object]


class Checks:
    """Runs all checks."""

    def __init__(
        self,
        system: System,
        users: Users,
        load: Load,
        chaos: Chaos,
        since: int,
        owners: Owners | None = None,
    ) -> None:
        self.system, self.users, self.load, self.chaos = system, users, load, chaos
        self._owners = owners
        self.began = datetime.now(UTC)
        self._since = since
        self._lines: list[Line] = []
        self._waiting = 0

    def all(self) -> list[Line]:
        """Run every check in order and return a line for each."""
        repaired = time.monotonic()
        for name, times in sorted(self.chaos.done.items()):
            self._report(name, f"{times} times")
        self._check("all faults were repaired", lambda: self.chaos.problems or "", expected="")
        self._check("everything is ready within a minute", lambda: self._ready(repaired))
        self.load.stop()
        if self._owners is not None:
            self._check("a guarantee is reclaimed", self._owners.finish)
        record = self.load.record
        self._report(
            "pods",
            f"{record.pods_created} created, {record.pods_refused} refused, {record.pods_ended} deleted",
        )
        self._check("every Job ends", self._jobs_end)
        self._check("no pod waits while a GPU is free", self._no_pod_waits)
        self._check("no acknowledged training number is lost", self._numbers)
        self._check("no hour is missing or wrong", self._hours)
        self._check("all views count the same GPUs", self._counts)
        self._check("no lease or allocation is left over", self._leases)
        self._check("no GPU was ever held twice", self._audit)
        return self._lines

    def _report(self, what: str, observed: object) -> None:
        self._lines.append({"what": what, "observed": observed})
        print(f"      {what:<44} {observed}", flush=True)

    def _check(self, what: str, check: Callable[[], Any], expected: Any = None) -> None:
        """Fail if `check` raises or, with `expected`, returns something else."""
        try:
            observed = check()
            ok = expected is None or observed == expected
        except Exception as error:
            observed, ok = f"{type(error).__name__}: {error}"[:2000], False
        self._lines.append({"what": what, "observed": observed, "ok": ok})
        print(f"{'ok  ' if ok else 'FAIL'}  {what:<44} {observed}", flush=True)

    def _ready(self, repaired: float) -> str:
        cluster = self.system.cluster
        left = READY_WITHIN - (time.monotonic() - repaired)
        for each in (cluster.etcd, *self.chaos.others().values()):
            each.wait(left)
        for component in COMPONENTS:
            left = max(1.0, READY_WITHIN - (time.monotonic() - repaired))
            cluster.wait_for(f"ready {component}", lambda of=component: self._all_ready(of), timeout=left)  # type: ignore[misc]
        left = max(1.0, READY_WITHIN - (time.monotonic() - repaired))
        cluster.wait_for("server with all of its sources", self._healthy, timeout=left)
        return f"after {time.monotonic() - repaired:.0f} s"

    def _all_ready(self, component: str) -> bool:
        """Return whether all processes of a component are ready; of the schedulers, only the leader is."""
        self.chaos.restart_exited()
        processes = self.system.processes.of(component)
        return (any if component == "scheduler" else all)(each.ready for each in processes)

    def _healthy(self) -> bool:
        try:
            return bool(self.system.get("/api/healthz")["status"] == "healthy")
        except (httpx.HTTPError, AssertionError):
            return False

    def _jobs_end(self) -> str:
        def ended() -> bool:
            path = f"/apis/batch/v1/namespaces/{self.users.namespace}/jobs"
            found = self.system.cluster.api.get(path)["items"]
            return all(
                each.get("status", {}).get("succeeded") == 1
                for each in found
                if each["metadata"]["name"] in self.load.record.jobs
            )

        self.system.cluster.wait_for("end of the Jobs", ended, timeout=180, period=0.5)
        return f"{len(self.load.record.jobs)} Jobs"

    def _no_pod_waits(self) -> str:
        """Wait until pods of one GPU or less are bound or no GPU is free."""

        def settled() -> bool:
            free = len(self._held_gpus()) < self._gpus()
            small = [
                pod
                for pod in self.users.pods()
                if not pod["spec"].get("nodeName")
                and pod["metadata"]["annotations"].get(CLAIM) in ("one", "half")
            ]
            self._waiting = len(small)
            return not (free and small)

        self.system.cluster.wait_for("bound pods", settled, timeout=60, period=0.5)
        return f"{self._waiting} pending, {self._gpus() - len(self._held_gpus())} GPUs are free"

    def _held_gpus(self) -> set[str]:
        """Return the GPUs that are taken: in mode `dra` those in allocations of ResourceClaims, else those with a lease."""
        if self.system.scheduler_values["delivery"] != "dra":
            return set(self.system.leases())
        claims = self.system.cluster.api.get(f"{resource_claims.API}/resourceclaims")["items"]
        return {
            f"gpu-{each['pool']}-{each['device'].removeprefix('gpu-')}"
            for claim in claims
            for each in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        }

    def _gpus(self) -> int:
        reports = self.system.cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
        return sum(len(each["status"]["devices"]) for each in reports)

    def _numbers(self) -> str:
        start, end = (
            self._milliseconds(self.began),
            self._milliseconds(datetime.now(UTC) + timedelta(minutes=1)),
        )
        path = f"/api/workloads/{self.load.training}/trainingPerformance?start={start}&end={end}"
        there = {row["timestamp"]: row["value"] for row in self.system.get(path) if row["metric"] == "loss"}
        lost = {at: loss for at, loss in self.load.record.numbers.items() if there.get(at) != loss}
        assert not lost, (
            f"{len(lost)} of {len(self.load.record.numbers)} are lost, such as {list(lost.items())[:3]}"
        )
        return f"{len(self.load.record.numbers)} acknowledged, {self.load.record.numbers_refused} not"

    def _hours(self) -> str:
        """Compare the GPU hours of every Job with the times in the status of its pods."""
        self.system.backfill_hours(self.began)
        wrong = []
        evicted = self._evicted_pods()
        jobs = [
            name for name in self.load.record.jobs if not any(each.startswith(f"{name}-") for each in evicted)
        ]
        for name in jobs:
            held = self._held(name)
            counted = self._counted(name)
            if abs(counted - held) > TOLERANCE_S / 3600:
                wrong.append(f"{name}: {counted * 3600:.1f} s counted, {held * 3600:.1f} s held")
        assert not wrong, "; ".join(wrong)
        return f"{len(jobs)} Jobs, all hours match the status of their pods"

    def _evicted_pods(self) -> set[str]:
        """Return the names of deleted pods: reclaimed ones leave no status to compare with."""
        references = (
            event.get("objectRef", {})
            for event in self.system.cluster.audit(self._since)
            if event.get("verb") == "delete"
        )
        return {each["name"] for each in references if each.get("resource") == "pods" and "name" in each}

    def _held(self, job: str) -> float:
        total = 0.0
        for pod in self.users.pods():
            owners = [each["name"] for each in pod["metadata"].get("ownerReferences", [])]
            if job not in owners:
                continue
            [scheduled] = [each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
            [container] = pod["status"]["containerStatuses"]
            ended = datetime.fromisoformat(container["state"]["terminated"]["finishedAt"])
            total += (ended - datetime.fromisoformat(scheduled["lastTransitionTime"])).total_seconds() / 3600
        return total

    def _counted(self, job: str) -> float:
        end = datetime.now(UTC) + timedelta(hours=1)
        span = f"start_time={self.began:%Y-%m-%dT%H:00:00Z}&end_time={end:%Y-%m-%dT%H:00:00Z}"
        rows = self.system.get(f"{HOURS}?namespace={self.users.namespace}&workload_name={job}&{span}")["data"]
        return float(sum(row["allocated_gpu_count"] for row in rows if row["workload_name"] == job))

    def _counts(self) -> str:
        """Compare the GPUs that are held, those in the status of the claims, the leases, and those of the fleet."""
        seen: dict[str, int] = {}

        def agree() -> bool:
            allocations = [each for name in CLAIMS for each in self.users.status(name).get("allocations", ())]
            seen.update(
                held=len(self._held_gpus()),
                leases=len(self.system.leases()),
                claims=len({(each["nodeName"], gpu) for each in allocations for gpu in each["gpuIds"]}),
                fleet=self.system.get("/api/clusters/overview")["allocatedGpus"],
            )
            return len(set(seen.values())) == 1

        try:
            self.system.cluster.wait_for("equal counts", agree, timeout=60, period=0.5)
        except TimeoutError:
            raise AssertionError(str(seen)) from None
        return ", ".join(f"{view} {number}" for view, number in seen.items())

    def _leases(self) -> str:
        def holders() -> set[str]:
            return {uid for held in self.system.leases().values() for uid in held.split(",")}

        def settled() -> bool:
            running = {
                pod["metadata"]["uid"]
                for pod in self.users.pods()
                if pod["status"].get("phase") not in ("Succeeded", "Failed") and pod["spec"].get("nodeName")
            }
            return holders() == running

        self.system.cluster.wait_for("leases of exactly the running pods", settled, timeout=60, period=0.5)
        held = len(self.system.leases())
        self.users.clean_up()
        self.system.cluster.wait_for(
            "free GPUs", lambda: not self.system.leases() and not self._held_gpus(), timeout=60
        )
        return f"{held} leases of running pods; none after their deletion"

    def _audit(self) -> str:
        events = list(self.system.cluster.audit(self._since))
        shared = {name for name, devices in CLAIMS.items() if devices.get("exclusivity") == "Shared"}
        shares = {
            uid: SHARE
            for event in events
            if event.get("objectRef", {}).get("resource") == "pods"
            for uid, claim in [_claim_of(event)]
            if claim in shared
        }
        verdict = audit.check_log(events, shares, set())
        assert not verdict.faults, "; ".join(verdict.faults[:5])
        return (
            f"{verdict.bindings} bindings of gpufleet, {verdict.allocations} allocations, {verdict.lease_writes} lease writes, {verdict.lease_deletes} deletes; "
            f"{verdict.unrecorded_ends} pods whose end a killed API server did not log"
        )

    @staticmethod
    def _milliseconds(moment: datetime) -> int:
        return int(moment.timestamp() * 1000)


def _claim_of(event: dict[str, Any]) -> tuple[str, str]:
    """Return the UID and claim of the pod in an audit event."""
    meta = event.get("responseObject", {}).get("metadata", {})
    return str(meta.get("uid", "")), str(meta.get("annotations", {}).get(CLAIM, ""))
