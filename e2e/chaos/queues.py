"""GpuQueues during chaos: one namespace lends GPUs, and gets them back again and again.

The users of the load borrow beyond their guarantee. A second namespace creates pods inside its own guarantee and
deletes them, so that borrowed GPUs are reclaimed while components fail.
"""

import contextlib
import time
from random import Random
from threading import Event, Thread

from e2e.chaos.load import FAILURES
from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.system import Users
from e2e.system.users import pod

QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
NAMESPACE = "owners"
GUARANTEED = 6
"""GPUs of the owners; the users have as many, of 16."""
RECLAIMED_WITHIN = 180.0
"""Seconds in which the owners get their guarantee: the grace period of 2 minutes, and a minute to plan and start."""


class Owners:
    """Users of a guarantee, in a thread until `stop`."""

    def __init__(self, cluster: Cluster, nodes: FakeNodes, lenders: str, seed: int) -> None:
        self._cluster, self._random, self._stop = cluster, Random(seed), Event()
        cluster.create_namespace(NAMESPACE)
        self.users = Users(cluster, nodes, NAMESPACE)
        self.users.claim("one", 1)
        self.created = 0
        self._live: list[str] = []
        for name, namespace in (("owners", NAMESPACE), ("lenders", lenders)):
            spec = {"namespaces": [namespace], "guaranteed": {"gpus": GUARANTEED}}
            body = {
                "apiVersion": "gpu.scheduling/v1",
                "kind": "GpuQueue",
                "metadata": {"name": name},
                "spec": spec,
            }
            cluster.api.create(QUEUES, body)
        self._thread = Thread(target=self._repeat, name="owners", daemon=True)

    def start(self) -> None:
        """Start to create and delete pods."""
        self._thread.start()

    def finish(self) -> str:
        """Stop, use the whole guarantee once more, and delete everything; return what was seen."""
        self._stop.set()
        self._thread.join(120)
        self.users.clean_up()
        names = [f"last-{at}" for at in range(GUARANTEED)]
        began = time.monotonic()
        for name in names:
            self.users.pod(name, "one")
        self.users.running(*names, timeout=RECLAIMED_WITHIN)
        seconds = time.monotonic() - began
        self.users.clean_up()
        return f"{self.created} pods of the owners; all {GUARANTEED} GPUs again after {seconds:.0f} s"

    def _repeat(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*FAILURES):
                self._create_or_delete()
            self._stop.wait(1.0)

    def _create_or_delete(self) -> None:
        if len(self._live) < GUARANTEED and self._random.random() < 0.6:
            name = f"owner-{self.created}"
            self.created += 1
            self._live.append(name)
            self._cluster.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod(name, "one"))
        elif self._live:
            self.users.delete(self._live.pop(self._random.randrange(len(self._live))))
