"""What users do meanwhile: pods with claims come and go, Jobs run, a training run reports its numbers.

Requests fail while things are broken, and are tried again as people and controllers do. What was acknowledged is
remembered: that must be there at the end.
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
class Seen:
    """What the users have done, and what was acknowledged."""

    pods_created: int = 0
    pods_refused: int = 0
    pods_ended: int = 0
    jobs: list[str] = field(default_factory=list)
    numbers: dict[int, float] = field(default_factory=dict)
    numbers_refused: int = 0


class Load:
    """Threads that do it until told to stop."""

    def __init__(self, system: System, users: Users, seed: int) -> None:
        self.system, self.users = system, users
        self.seen = Seen()
        self._chance = Random(seed)
        self._stop = Event()
        self._threads = [
            Thread(target=self._repeat, args=(act, pause), name=act.__name__, daemon=True)
            for act, pause in ((self._come_and_go, 0.3), (self._run_a_job, 15.0), (self._train, 0.5))
        ]
        self._live: list[str] = []
        self._number = 0

    def prepare(self) -> None:
        """Claims, and the Job that trains all the while."""
        for name, devices in CLAIMS.items():
            self.users.claim(name, **devices)
        self.training = self.users.job("training", "two")
        found = self.system.cluster.wait_for("pod of the training", self._training_pod)
        self.users.running(found)
        self._token = self._token_of(found)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, and wait for the last."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def _training_pod(self) -> str:
        names = [each["metadata"]["name"] for each in self.users.pods()]
        return next((name for name in names if name.startswith("training-")), "")

    def _repeat(self, act: Any, pause: float) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*FAILURES):
                act()
            self._stop.wait(pause)

    def _come_and_go(self) -> None:
        if len(self._live) < MOST_PODS and self._chance.random() < 0.7:
            self._number += 1
            name = f"pod-{self._number}"
            manifest = pod(name, self._chance.choice(sorted(CLAIMS)))
            if self._chance.random() < 0.5:
                seconds = f"{self._chance.uniform(0.5, 8):.1f}"
                manifest["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = seconds
            self._live.append(name)
            try:
                self.users.cluster.api.create(f"/api/v1/namespaces/{self.users.namespace}/pods", manifest)
                self.seen.pods_created += 1
            except FAILURES:
                self.seen.pods_refused += 1
        elif self._live:
            name = self._live[self._chance.randrange(len(self._live))]
            try:
                self.users.delete(name)
            except RequestFailed as error:
                if error.status != 404:
                    raise
            self._live.remove(name)
            self.seen.pods_ended += 1

    def _run_a_job(self) -> None:
        name = f"job-{len(self.seen.jobs)}"
        self.users.job(name, "one", runs_for=JOB_SECONDS)
        self.seen.jobs.append(name)

    def _train(self) -> None:
        """One number; what the server acknowledges it must keep."""
        moment, loss = int(time.time() * 1000), round(self._chance.random(), 6)
        row = {"metric": "loss", "value": loss, "timestamp": moment}
        url = f"{self.system.server.url}/api/workloads/{self.training}/trainingPerformance"
        try:
            answer = httpx.post(url, json=[row], headers=self._token, timeout=10)
            if answer.is_success:
                self.seen.numbers[moment] = loss
                return
        except httpx.HTTPError:
            pass
        self.seen.numbers_refused += 1

    def _token_of(self, name: str) -> dict[str, str]:
        """The token that Kubernetes would mount into the pod."""
        meta = self.users.read(name)["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": meta["uid"]}
        body = {"spec": {"expirationSeconds": 7200, "boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{self.users.namespace}/serviceaccounts/default/token"
        token = self.system.cluster.api.create(path, body)["status"]["token"]
        return {"Authorization": f"Bearer {token}"}
