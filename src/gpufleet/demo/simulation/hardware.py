"""The machines of a simulated fleet: models, islands, MIG instances, racks, and faulty nodes.

Everything follows from the seed and the number of nodes. Faults alternate within pairs of machines:
one is always faulty and the other repaired, so that a demo shows a fault on any day and its history
stays consistent.
"""

import random
from dataclasses import dataclass
from uuid import UUID

GIB = 2**30
DAY = 86_400.0
BUILT = 1_767_225_600.0
"""When the oldest machine was set up: 2026-01-01, in Unix seconds."""

XID = 79
"""The GPU has fallen off the bus."""
_MIN_NODES_FOR_FAULTS = 8
_MIN_NODES_FOR_SLURM = 8
_MAX_SLURM_NODES = 48
_DOWN_PERIOD, _LOST_PERIOD, _LOST_OFFSET = 10 * DAY, 14 * DAY, 5 * DAY
_MIG_LAYOUTS = (("1g.10gb",) * 7, ("3g.40gb",) * 2)
"""Profiles of the MIG instances of a GPU with 80 GB; the GPUs in MIG mode use these in turn."""
_MIG_SHARE = 4
"""One in this many GPUs of a MIG node is in MIG mode."""
_MIN_H100_FOR_MIG = 4


@dataclass(frozen=True)
class GpuModel:
    """A GPU product."""

    name: str
    short: str
    vendor: str
    memory_bytes: int
    idle_watts: float
    limit_watts: float
    bandwidth_gbps: int
    """Of each GPU to its island; 0 without links between GPUs."""
    islands: int
    fabric: str
    peak_tflops: float
    """Dense BF16."""
    share: float
    """Share of the fleet."""

    @property
    def resource(self) -> str:
        """The extended resource that pods request."""
        return f"{self.vendor}.com/gpu"


MODELS = (
    GpuModel("NVIDIA H200", "h200", "nvidia", 141 * GIB, 75, 700, 900, 1, "nvlink", 989, 0.25),
    GpuModel("NVIDIA H100 80GB HBM3", "h100", "nvidia", 80 * GIB, 70, 700, 900, 1, "nvlink", 989, 0.25),
    GpuModel("NVIDIA H100 NVL", "h100nvl", "nvidia", 94 * GIB, 65, 400, 600, 4, "nvlink", 835, 0.06),
    GpuModel("NVIDIA A100-SXM4-80GB", "a100", "nvidia", 80 * GIB, 55, 400, 600, 2, "nvlink", 312, 0.19),
    GpuModel("NVIDIA L40S", "l40s", "nvidia", 48 * GIB, 35, 350, 0, 1, "pcie", 362, 0.12),
    GpuModel("AMD Instinct MI300X", "mi300x", "amd", 192 * GIB, 140, 750, 896, 1, "xgmi", 1307, 0.13),
)


@dataclass(frozen=True)
class FaultyNodes:
    """The nodes that have faults; None in a fleet too small for them."""

    broken: tuple[int, int] | None = None
    """Two nodes of which one is down at any time."""
    xid: tuple[int, int] | None = None
    """Two nodes of which one has lost a GPU at any time."""
    cordoned: int | None = None


@dataclass(frozen=True)
class Degraded:
    """A GPU that stays in use with a finding."""

    node: int
    gpu: int
    signal: str
    message: str
    period: float
    """Seconds after which it is found again."""

    def since(self, at: float) -> float:
        """Return when it was found."""
        return at - (at - BUILT - self.node * 3600.0) % self.period


@dataclass(frozen=True)
class Outage:
    """The times at which a node of a faulty pair can't be used: every other period."""

    period: float
    offset: float
    side: int
    """0 or 1: which of the alternating periods."""

    def covers(self, at: float) -> bool:
        """Return whether the node is faulty."""
        return _period_number(at, self) % 2 == self.side

    def since(self, at: float) -> float:
        """Return the start of the current period."""
        return at - (at - BUILT - self.offset) % self.period

    def next_start(self, at: float) -> float:
        """Return when the node, usable now, becomes faulty."""
        return self.since(at) + self.period


@dataclass(frozen=True)
class MigPart:
    """A MIG instance of a GPU."""

    id: int
    profile: str
    uuid: str


@dataclass(frozen=True)
class Machine:
    """One node."""

    number: int
    name: str
    model: GpuModel
    gpus: int
    rack: str
    zone: str
    address: str
    created: float
    uid: str
    uuids: tuple[str, ...]
    source: str = "k8s"
    """The system that manages it: k8s, slurm or docker."""
    mig_gpus: int = 0
    """The first GPUs, in MIG mode."""

    def peers(self, gpu: int) -> tuple[int, ...]:
        """Return the GPUs that a GPU is linked with. MIG mode disables links."""
        if not self.model.bandwidth_gbps or gpu < self.mig_gpus:
            return ()
        size = self.island_size
        first = gpu - gpu % size
        island = range(max(first, self.mig_gpus), min(first + size, self.gpus))
        return tuple(other for other in island if other != gpu)

    @property
    def island_size(self) -> int:
        """The number of GPUs that are linked together."""
        return max(1, self.gpus // self.model.islands)

    def mig_parts(self, gpu: int) -> tuple[MigPart, ...]:
        """Return the MIG instances of a GPU."""
        if gpu >= self.mig_gpus:
            return ()
        profiles = _MIG_LAYOUTS[gpu % len(_MIG_LAYOUTS)]
        rng = random.Random(f"{self.uuids[gpu]}/mig")  # noqa: S311  (a simulation, no secret)
        return tuple(MigPart(n, profile, f"MIG-{new_uid(rng)}") for n, profile in enumerate(profiles))


@dataclass(frozen=True)
class Hardware:
    """All machines, and the faulty ones among them."""

    machines: tuple[Machine, ...]
    faulty: FaultyNodes
    degraded: tuple[Degraded, ...] = ()

    def outage(self, machine: Machine) -> Outage | None:
        """Return when the node can't be used; None for a node without faults."""
        for pair, period, offset in (
            (self.faulty.broken, _DOWN_PERIOD, 0.0),
            (self.faulty.xid, _LOST_PERIOD, _LOST_OFFSET),
        ):
            if pair is not None and machine.number in pair:
                return Outage(period, offset, pair.index(machine.number))
        return None

    def is_down(self, machine: Machine, at: float) -> bool:
        """Return whether the node is down."""
        return machine.number in (self.faulty.broken or ()) and self._is_out(machine, at)

    def lost_gpu(self, machine: Machine, at: float) -> int | None:
        """Return the index of the GPU that the driver has lost, or None."""
        if machine.number in (self.faulty.xid or ()) and self._is_out(machine, at):
            return lost_gpu_index(machine)
        return None

    def out_since(self, machine: Machine, at: float) -> float:
        """Return when a faulty node became faulty."""
        outage = self.outage(machine)
        return outage.since(at) if outage is not None else at

    def _is_out(self, machine: Machine, at: float) -> bool:
        outage = self.outage(machine)
        return outage is not None and outage.covers(at)

    def is_cordoned(self, machine: Machine) -> bool:
        """Return whether the node is cordoned."""
        return machine.number == self.faulty.cordoned


def lost_gpu_index(machine: Machine) -> int:
    """Return the index of the GPU that gets lost on a node."""
    return min(3, machine.gpus - 1)


def build_hardware(seed: int, nodes: int, gpus: int) -> Hardware:
    """Return the machines of a fleet."""
    models = _models(nodes)
    faulty = _faulty_nodes(models)
    other_sources = _other_sources(models, faulty)
    mig_nodes = _mig_nodes(models, {*_faulty_numbers(faulty), *other_sources})
    counts: dict[str, int] = {}
    machines = []
    for number, model in enumerate(models):
        counts[model.short] = counts.get(model.short, 0) + 1
        rng = random.Random(f"{seed}/machine/{number}")  # noqa: S311  (a simulation, no secret)
        machines.append(
            Machine(
                number=number,
                name=f"{model.short}-{counts[model.short]:03d}",
                model=model,
                gpus=gpus,
                rack=f"r{number // 8 + 1:02d}",
                zone="abc"[number // 8 % 3],
                address=f"10.{number // 65025}.{number // 255 % 255}.{number % 255}",
                created=BUILT + rng.uniform(0, 30) * DAY,
                uid=new_uid(rng),
                uuids=tuple(f"GPU-{new_uid(rng)}" for _ in range(gpus)),
                source=other_sources.get(number, "k8s"),
                mig_gpus=gpus // _MIG_SHARE if number in mig_nodes else 0,
            )
        )
    return Hardware(tuple(machines), faulty, _degraded_gpus(machines, faulty))


def new_uid(rng: random.Random) -> str:
    """Return a random uid."""
    return str(UUID(int=rng.getrandbits(128), version=4))


def _models(nodes: int) -> list[GpuModel]:
    """Return the model of each node, in blocks, as machines are bought."""
    models: list[GpuModel] = []
    until = 0.0
    for model in MODELS:
        until += model.share
        models += [model] * (round(until * nodes) - len(models))
    return models


def _faulty_nodes(models: list[GpuModel]) -> FaultyNodes:
    if len(models) < _MIN_NODES_FOR_FAULTS:
        return FaultyNodes()
    of = {model.short: [n for n, each in enumerate(models) if each is model] for model in MODELS}
    h100, a100 = of["h100"], of["a100"]
    return FaultyNodes(
        broken=(h100[-1], a100[-1]),
        xid=(h100[0], of["h200"][-1]),
        cordoned=of["l40s"][-1] if of["l40s"] else None,
    )


def _degraded_gpus(machines: list[Machine], faulty: FaultyNodes) -> tuple[Degraded, ...]:
    """Return GPUs with findings that stop nothing, on the first healthy node of some models."""
    if len(machines) < _MIN_NODES_FOR_FAULTS:
        return ()
    found = []
    for short, gpu, signal, message, period in (
        ("h200", 5, "pcie-width", "the PCIe link has 8 of 16 lanes", 9 * DAY),
        ("h100", 2, "nvlink-errors", "NVLink recovery errors were counted", DAY / 24),
        ("a100", 1, "ecc", "uncorrectable ECC errors since reset: 2", 16 * DAY),
    ):
        usable = [
            machine
            for machine in machines
            if machine.model.short == short
            and machine.source == "k8s"
            and machine.number not in _faulty_numbers(faulty)
        ]
        if usable and gpu < usable[-1].gpus:
            found.append(Degraded(usable[-1].number, gpu, signal, message, period))
    return tuple(found)


def _other_sources(models: list[GpuModel], faulty: FaultyNodes) -> dict[int, str]:
    """Return the nodes outside Kubernetes: some A100 nodes form a Slurm cluster, one L40S node runs containers."""
    if len(models) < _MIN_NODES_FOR_SLURM:
        return {}
    healthy = [n for n in range(len(models)) if n not in _faulty_numbers(faulty)]
    slurm = [n for n in healthy if models[n].short == "a100"][
        : min(_MAX_SLURM_NODES, max(1, len(models) // 10))
    ]
    docker = [n for n in healthy if models[n].short == "l40s"][:1]
    return {**dict.fromkeys(slurm, "slurm"), **dict.fromkeys(docker, "docker")}


def _mig_nodes(models: list[GpuModel], others: set[int]) -> set[int]:
    """Return the Kubernetes nodes with GPUs in MIG mode: one A100 node, and one H100 node if there are enough."""
    found = set()
    for short, least in (("a100", 1), ("h100", _MIN_H100_FOR_MIG)):
        nodes = [n for n, model in enumerate(models) if model.short == short]
        usable = [n for n in nodes if n not in others]
        if len(models) >= _MIN_NODES_FOR_FAULTS and usable and len(nodes) >= least:
            found.add(usable[0])
    return found


def _faulty_numbers(faulty: FaultyNodes) -> set[int]:
    cordoned = () if faulty.cordoned is None else (faulty.cordoned,)
    return {*(faulty.broken or ()), *(faulty.xid or ()), *cordoned}


def _period_number(at: float, outage: Outage) -> int:
    return int((at - BUILT - outage.offset) // outage.period)
