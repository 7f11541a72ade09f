"""What goes wrong: processes are killed and started again, frozen, and cut off from the API server.

One fault at a time or several that overlap, drawn from a seed; a run is told by its seed and its length. What a kubelet,
an operator or a network would put right is put right here after a while.
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

PARTS = ("scheduler", "kube-scheduler", "webhook", "server", "agent")


@dataclass(frozen=True)
class Fault:
    """Something to do to somebody: how it begins and how it ends, and for how many seconds at most it lasts."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    longest: float


class Proxies:
    """A proxy to the API server for each process of the charts, so that one can be cut off and no other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.of: dict[str, Proxy] = {}

    def identity_of(self, pod: str, identity: Identity) -> Identity:
        """The identity as the process of this pod uses it."""
        self.of[pod] = Proxy(self._port)
        return identity.through(self.of[pod].url, f"chaos-{pod}")

    def close(self) -> None:
        """End all of them."""
        for proxy in self.of.values():
            proxy.close()


class Chaos:
    """Does faults in a thread of its own until told to stop; then everything is put right."""

    def __init__(self, system: System, proxies: Proxies, seed: int) -> None:
        self._system, self._proxies = system, proxies
        self._chance = Random(seed)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="chaos", daemon=True)
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No new fault; every fault that is under way ends."""
        self._stop.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), "a fault does not end"

    def _run(self) -> None:
        while not self._stop.is_set():
            together = self._chance.choice((1, 1, 1, 2, 3))
            faults = [self._draw() for _ in range(together)]
            self._do({fault.name: fault for fault in faults})
            self.revive()
            self._stop.wait(self._chance.uniform(0.5, 4.0))

    def revive(self) -> None:
        """The kubelet's part: what has ended by itself is started again (kube-scheduler ends when it loses its office)."""
        for kind in PARTS:
            for part in self._system.processes.of(kind):
                if not part.process.running:
                    self.done[f"{kind} ended by itself"] += 1
                    part.process.kill()
                    part.process.spawn()

    def _do(self, faults: dict[str, Fault]) -> None:
        """Begin all, wait, end all: what was stopped is started even if something fails meanwhile."""
        begun: list[Fault] = []
        try:
            for fault in faults.values():
                begun.append(fault)
                fault.begin()
                self.done[fault.name] += 1
            self._stop.wait(self._chance.uniform(0.2, min(fault.longest for fault in begun)))
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

    def _draw(self) -> Fault:
        """Any part, in any of the ways that it can fail."""
        kind = self._chance.choice(
            (*PARTS, "scheduler", "server", "API server", "etcd", "PostgreSQL", "Prometheus")
        )
        cluster = self._system.cluster
        if kind == "PostgreSQL":
            database = self._system.database
            return Fault("PostgreSQL killed", database.kill, database.start, 6)
        if kind == "Prometheus":
            return self._of_process(kind, self._system.prometheus.process, 10)
        if kind == "API server":
            return self._of_process(kind, cluster.apiserver, 8)
        if kind == "etcd":
            return Fault("etcd paused", cluster.etcd.pause, cluster.etcd.resume, 4)
        return self._of_part(kind, self._chance.choice(self._system.processes.of(kind)))

    def _of_part(self, kind: str, part: PodProcess) -> Fault:
        proxy = self._proxies.of[part.name]
        match self._chance.choice(("process", "process", "cut", "stall", "drop")):
            case "cut":
                return Fault(f"{kind} cut off", proxy.cut, proxy.heal, 20)
            case "stall":
                return Fault(f"{kind} stalled", proxy.stall, proxy.heal, 20)
            case "drop":
                return Fault(f"{kind} connections dropped", proxy.drop, proxy.heal, 1)
        return self._of_process(kind, part.process, 20)

    def _of_process(self, kind: str, process: Component, longest: float) -> Fault:
        if self._chance.random() < 0.6:
            return Fault(f"{kind} killed", process.kill, process.spawn, min(longest, 5))

        def resume() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.resume()

        return Fault(f"{kind} paused", process.pause, resume, longest)
