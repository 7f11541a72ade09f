"""The expected demand: kinds of requests and how frequent each is.

Scores estimate how useful free GPUs are, so they need the requests to expect. A trace defines
its demand. A live cluster learns it from recent claims, whose weight decays with a half-life,
on top of a prior worth a few claims.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpufleet.placement.request import WHOLE, Exclusivity, Request

MOST_KINDS = 256
"""Kinds that a score considers; the rarest are left out."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """The properties of a request that matter for the capacity of a node."""

    count: int
    milli: int
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Request) -> "Kind":
        """Return the kind of a request. MIG requests take no whole GPU and count as CPU and memory only."""
        count = 0 if request.exclusivity is Exclusivity.MIG else request.count
        milli = request.milli_per_gpu if count else 0
        models = tuple(sorted(request.models)) if count else ()
        return cls(count, milli, request.cpu_milli, request.memory_mib, models)

    @property
    def gpu_milli(self) -> int:
        """Return the GPU capacity of the kind, in thousandths."""
        return self.count * self.milli


@dataclass(frozen=True)
class Demand:
    """Kinds with their weights, the heaviest first."""

    kinds: tuple[tuple[Kind, float], ...]

    @classmethod
    def of(cls, weights: Mapping[Kind, float]) -> "Demand":
        """Return the demand with these weights, without the rarest kinds beyond the limit."""
        heaviest = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_KINDS]
        return cls(tuple((kind, weight) for kind, weight in heaviest if weight > 0))

    @classmethod
    def of_requests(cls, requests: Iterable[Request]) -> "Demand":
        """Return the demand in which every request counts once."""
        weights: dict[Kind, float] = {}
        for request in requests:
            kind = Kind.of(request)
            weights[kind] = weights.get(kind, 0) + 1
        return cls.of(weights)


PRIOR = Demand.of(
    {
        Kind(1, WHOLE): 4.0,
        Kind(2, WHOLE): 2.0,
        Kind(4, WHOLE): 2.0,
        Kind(8, WHOLE): 3.0,
        Kind(1, WHOLE // 2): 1.0,
    }
)
"""The assumption before any claim is seen: single GPUs, whole nodes, and sizes between."""


@dataclass
class DemandMemory:
    """Learn the demand from claims. Times are seconds of any monotonic clock of the caller."""

    half_life_s: float = 2 * 86400.0
    prior: Demand = PRIOR
    _weights: dict[Kind, float] = field(default_factory=dict)
    _since: float | None = None

    def observe(self, request: Request, now: float) -> None:
        """Count one claim."""
        if self._since is None or now - self._since > 32 * self.half_life_s:
            self._rebase(now)
        kind = Kind.of(request)
        self._weights[kind] = self._weights.get(kind, 0.0) + self._growth(now)
        if len(self._weights) > 4 * MOST_KINDS:
            self._rebase(now)

    def demand(self, now: float) -> Demand:
        """Return the prior plus the observed claims, decayed to `now`."""
        weights = dict(self.prior.kinds)
        scale = 1.0 / self._growth(now) if self._since is not None else 0.0
        for kind, weight in self._weights.items():
            weights[kind] = weights.get(kind, 0.0) + weight * scale
        return Demand.of(weights)

    def _growth(self, now: float) -> float:
        # New claims get more weight instead of old ones less, so that nothing needs updating over time.
        return math.exp2((now - (self._since or 0.0)) / self.half_life_s)

    def _rebase(self, now: float) -> None:
        scale = 1.0 / self._growth(now) if self._since is not None else 0.0
        heaviest = sorted(self._weights.items(), key=lambda pair: -pair[1])[: 2 * MOST_KINDS]
        self._weights = {kind: weight * scale for kind, weight in heaviest if weight * scale > 1e-6}
        self._since = now
