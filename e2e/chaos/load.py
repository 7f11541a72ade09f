"""Generate the load of users: create and delete pods with claims, run Jobs, report training numbers.

Requests that fail during faults are repeated, as users and controllers do. Acknowledged writes are recorded: they
must exist at the end.
"""

import contextlib
import http.client
import time
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread
from typing import Any

import httpx

from e2e.cluster import CommandFailed, RequestFailed
from e2e.system import System, Users
from e2e.system.users import pod

CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"count": 1},
    "two": {"count": 2},
    "half": {"count": 1, "exclusivity": "Shared", "share": 0.5},
}
MOST_PODS = 14
JOB_SECONDS = 20
FAILURES = (OSError, http.client.HTTPException, RequestFailed, CommandFailed, httpx.HTTPError)


@dataclass
class Record:
    """What the users did and which writes were acknowledged."""

    pods_created: int = 0
    pods_refused: int = 0
    pods_ended: int = 0
    jobs: list[str] = field(default_factory=list)
    numbers: dict[int, float] = field(default_factory=dict)
    numbers_refused: int = 0


class Load:
    """Runs the load in threads until `stop`."""

    def __init__(self, system: System, users: Users, seed: int) -> None:
        self.system, self.users = system, users
        self.record = Record()
        self._random = Random(seed)
        self._stop = Event()
        self._threads = [
            Thread(target=self._repeat, args=(action, pause), name=action.__name__, daemon=True)
            for action, pause in (
                (self._create_or_delete_pod, 0.3),
                (self._create_job, 15.0),
                (self._report_loss, 0.5),
            )
        ]
        self._live: list[str] = []
        self._number = 0

    def prepare(self) -> None:
        """Create the claims and the Job that reports training numbers."""
        for name, devices in CLAIMS.items():
            self.users.claim(name, **devices)
        self.training = self.users.job("training", "two")
        found = self.system.cluster.wait_for("pod of the training", self._training_pod)
        self.users.running(found)
        self._token = self._token_of(found)

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} did not stop within 120 s"

    def _training_pod(self) -> str:
        names = [each["metadata"]["name"] for each in self.users.pods()]
        return next((name for name in names if name.startswith("training-")), "")

    def _repeat(self, action: Any, pause: float) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*FAILURES):
                action()
            self._stop.wait(pause)

    def _create_or_delete_pod(self) -> None:
        if len(self._live) < MOST_PODS and self._random.random() < 0.7:
            self._number += 1
            name = f"pod-{self._number}"
            manifest = pod(name, self._random.choice(sorted(CLAIMS)))
            if self._random.random() < 0.5:
                seconds = f"{self._random.uniform(0.5, 8):.1f}"
                manifest["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = seconds
            self._live.append(name)
            try:
                self.users.cluster.api.create(f"/api/v1/namespaces/{self.users.namespace}/pods", manifest)
                self.record.pods_created += 1
            except FAILURES:
                self.record.pods_refused += 1
        elif self._live:
            name = self._live[self._random.randrange(len(self._live))]
            try:
                self.users.delete(name)
            except RequestFailed as error:
                if error.status != 404:
                    raise
            self._live.remove(name)
            self.record.pods_ended += 1

    def _create_job(self) -> None:
        name = f"job-{len(self.record.jobs)}"
        self.users.job(name, "one", runs_for=JOB_SECONDS)
        self.record.jobs.append(name)

    def _report_loss(self) -> None:
        """Report one loss and record it if the server acknowledges it."""
        moment, loss = int(time.time() * 1000), round(self._random.random(), 6)
        row = {"metric": "loss", "value": loss, "timestamp": moment}
        url = f"{self.system.server.url}/api/workloads/{self.training}/trainingPerformance"
        try:
            response = httpx.post(url, json=[row], headers=self._token, timeout=10)
            if response.is_success:
                self.record.numbers[moment] = loss
                return
        except httpx.HTTPError:
            pass
        self.record.numbers_refused += 1

    def _token_of(self, name: str) -> dict[str, str]:
        """Return the token that Kubernetes would mount into the pod."""
        meta = self.users.read(name)["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": meta["uid"]}
        body = {"spec": {"expirationSeconds": 7200, "boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{self.users.namespace}/serviceaccounts/default/token"
        token = self.system.cluster.api.create(path, body)["status"]["token"]
        return {"Authorization": f"Bearer {token}"}
