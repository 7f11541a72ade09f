"""Inject faults: kill and restart processes, freeze them, and disconnect them from the API server.

Faults are drawn from a seed, one at a time or several that overlap; seed and duration make a run repeatable. After a
while each fault is repaired, as a kubelet, an operator or the network would do.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import Event, Thread

from e2e.cluster import Component, Identity
from e2e.cluster.proxy import Proxy
from e2e.system import PodProcess, System

COMPONENTS = ("scheduler", "kube-scheduler", "webhook", "server", "agent")


@dataclass(frozen=True)
class Fault:
    """A fault: how it begins and ends, and how many seconds it lasts at most. A target has one fault at a time."""

    name: str
    target: object
    begin: Callable[[], None]
    end: Callable[[], None]
    longest: float


class Proxies:
    """A proxy to the API server for each process of the charts, so that each can be disconnected alone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.of: dict[str, Proxy] = {}

    def identity_of(self, pod: str, identity: Identity) -> Identity:
        """Return the identity for the process of a pod, through its own proxy."""
        self.of[pod] = Proxy(self._port)
        return identity.through(self.of[pod].url, f"chaos-{pod}")

    def close(self) -> None:
        """Close all proxies."""
        for proxy in self.of.values():
            proxy.close()


class Chaos:
    """Injects faults in its own thread until `stop`, which repairs everything."""

    def __init__(self, system: System, proxies: Proxies, seed: int) -> None:
        self._system, self._proxies = system, proxies
        self._random = Random(seed)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="chaos", daemon=True)
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    def start(self) -> None:
        """Start injecting faults."""
        self._thread.start()

    def stop(self) -> None:
        """Inject no new faults and wait until all current ones are repaired."""
        self._stop.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), "a fault was not repaired within 180 s"

    def _run(self) -> None:
        while not self._stop.is_set():
            together = self._random.choice((1, 1, 1, 2, 3))
            faults = [self._draw() for _ in range(together)]
            self._do({fault.target: fault for fault in faults})
            self.restart_exited()
            self._stop.wait(self._random.uniform(0.5, 4.0))

    def restart_exited(self) -> None:
        """Restart processes that exited, like a kubelet. kube-scheduler exits when it loses the leader election."""
        for kind in COMPONENTS:
            for each in self._system.processes.of(kind):
                if not each.process.running:
                    self.done[f"{kind} exited"] += 1
                    each.process.kill()
                    each.process.spawn()
        for name, process in self.others().items():
            if not process.running:
                self.done[f"{name} exited"] += 1
                process.kill()
                process.spawn()

    def _do(self, faults: dict[object, Fault]) -> None:
        """Begin all faults, wait, and end them, even if something fails in between."""
        begun: list[Fault] = []
        try:
            for fault in faults.values():
                begun.append(fault)
                fault.begin()
                self.done[fault.name] += 1
            self._stop.wait(self._random.uniform(0.2, min(fault.longest for fault in begun)))
        except Exception as error:
            self.problems.append(f"{[fault.name for fault in begun]}: {error}")
        for fault in begun:
            self._end(fault)

    def _end(self, fault: Fault) -> None:
        for last in (False, False, True):
            try:
                fault.end()
                return
            except Exception as error:
                if last:
                    self.problems.append(f"{fault.name} did not end: {error}")
                time.sleep(1)

    def others(self) -> dict[str, Component]:
        """Return the processes that are killed and paused, but don't belong to the charts."""
        cluster = self._system.cluster
        return {
            "API server": cluster.apiserver,
            "controller manager": cluster.controller_manager,
            "the cluster's kube-scheduler": cluster.scheduler,
            "Prometheus": self._system.prometheus.process,
        }

    def _draw(self) -> Fault:
        """Choose a component and one of its possible faults."""
        kind = self._random.choice((*COMPONENTS, "scheduler", "server", "etcd", "PostgreSQL", *self.others()))
        cluster = self._system.cluster
        if kind == "PostgreSQL":
            database = self._system.database
            return Fault("PostgreSQL killed", database, database.kill, database.start, 6)
        if kind in self.others():
            return self._of_process(kind, self.others()[kind], 8)
        if kind == "etcd":
            return Fault("etcd paused", cluster.etcd, cluster.etcd.pause, cluster.etcd.resume, 4)
        return self._of_pod(kind, self._random.choice(self._system.processes.of(kind)))

    def _of_pod(self, kind: str, target: PodProcess) -> Fault:
        proxy = self._proxies.of[target.name]
        match self._random.choice(("process", "process", "cut", "stall", "drop")):
            case "cut":
                return Fault(f"{kind} disconnected", proxy, proxy.cut, proxy.heal, 20)
            case "stall":
                return Fault(f"{kind} stalled", proxy, proxy.stall, proxy.heal, 20)
            case "drop":
                return Fault(f"{kind} connections dropped", proxy, proxy.drop, proxy.heal, 1)
        return self._of_process(kind, target.process, 20)

    def _of_process(self, kind: str, process: Component, longest: float) -> Fault:
        if self._random.random() < 0.6:
            return Fault(f"{kind} killed", process, process.kill, process.spawn, min(longest, 5))

        def resume() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.resume()

        return Fault(f"{kind} paused", process, process.pause, resume, longest)
