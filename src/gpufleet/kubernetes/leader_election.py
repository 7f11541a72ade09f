"""Leader election on a Lease, by the same rules as Kubernetes' own components.

The leader renews the lease. A candidate takes it over when the lease has not changed for its
duration, measured by the candidate's own clock, so clock skew does no harm. Every write carries
the version that was read, so of two candidates one gets a conflict. A leader that can't renew in
time stops leading before another can start. A leader that shuts down releases the lease, so that
the next one need not wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import Conflict, KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.client.resources import LEASES
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta, micro_time
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")

_RELEASE_TIMEOUT = 2.0
"""Seconds that a leader spends at most on releasing its lease."""


@dataclass(frozen=True)
class ElectionTimings:
    """Durations in seconds, named as in kube-scheduler's leader election."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0


class LeaderElection:
    """One candidate for the lease `name`; `identity` must be unique to this process."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        timings: ElectionTimings = ElectionTimings(),  # noqa: B008  (frozen)
    ) -> None:
        self.identity = identity
        self.leader = ""
        # Own rate limit: renewals must not queue behind a thousand Bindings.
        self._client = client.clone()
        self._namespace = namespace
        self._name = name
        self._timings = timings
        self._timing = client.timing
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self._lease: Lease | None = None
        self._renewed_at = float("-inf")

    @property
    def leading(self) -> bool:
        """Return whether this process leads; False as soon as the renew deadline has passed."""
        age = self._timing.monotonic() - self._renewed_at
        return self.leader == self.identity and age < self._timings.renew_deadline

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run `lead` whenever this process is elected; return when `lead` returns.

        `lead` is cancelled when leadership is lost.
        """
        try:
            while True:
                await self._until_elected()
                _log.info("leading", lease=self._name, identity=self.identity)
                if await self._lead_while_elected(lead):
                    return
                _log.warning("leadership_lost", lease=self._name, identity=self.identity, leader=self.leader)
        finally:
            try:
                await self._release()
            finally:
                await self._client.close()

    async def _until_elected(self) -> None:
        while not await self._try():
            await self._pause()

    async def _lead_while_elected(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run `lead` and renew; return True if `lead` returned, False if leadership was lost."""
        work = asyncio.ensure_future(lead())
        try:
            while await self._renewed_in_time():
                pause = asyncio.ensure_future(self._pause())
                try:
                    await asyncio.wait((work, pause), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
                if work.done():
                    await work
                    return True
            return False
        finally:
            work.cancel()
            await asyncio.wait((work,))

    async def _renewed_in_time(self) -> bool:
        while True:
            left = self._renewed_at + self._timings.renew_deadline - self._timing.monotonic()
            if left <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    if await self._try():
                        return True
                    if self.leader != self.identity:
                        return False
                    await self._pause()

    async def _pause(self) -> None:
        await self._timing.sleep(self._timings.retry_period * (1 + 0.2 * self._timing.random()))

    async def _try(self) -> bool:
        """Take or renew the lease; return whether this process holds it."""
        started_at = self._timing.monotonic()
        try:
            lease = await self._read()
            if lease is None:
                taken = await self._client.create(LEASES, self._new_lease())
            elif self._held_by_another(lease.spec):
                return False
            else:
                taken = await self._client.replace(LEASES, self._renewed(lease))
        except Conflict:
            return False
        except (KubernetesUnavailable, KubernetesRefused) as error:
            _log.warning("lease_not_renewed", lease=self._name, error=str(error))
            return False
        self._lease, self.leader, self._renewed_at = taken, self.identity, started_at
        self._seen, self._seen_at = taken.spec, started_at
        return True

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._name, self._namespace)
        except ObjectNotFound:
            return None

    def _held_by_another(self, spec: LeaseSpec) -> bool:
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._timing.monotonic()
        self.leader = spec.holder_identity or ""
        if not self.leader or self.leader == self.identity:
            return False
        duration = spec.lease_duration_seconds or self._timings.lease_duration
        return self._timing.monotonic() < self._seen_at + duration

    def _new_lease(self) -> Lease:
        now = micro_time(self._timing.now())
        return Lease(
            metadata=ObjectMeta(name=self._name, namespace=self._namespace),
            spec=LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=self._duration_seconds,
                acquire_time=now,
                renew_time=now,
                lease_transitions=0,
            ),
        )

    def _renewed(self, lease: Lease) -> Lease:
        now = micro_time(self._timing.now())
        ours = lease.spec.holder_identity == self.identity
        spec = structs.replace(
            lease.spec,
            holder_identity=self.identity,
            lease_duration_seconds=self._duration_seconds,
            acquire_time=micro_time(lease.spec.acquire_time or now) if ours else now,
            renew_time=now,
            lease_transitions=(lease.spec.lease_transitions or 0) + (not ours),
        )
        return structs.replace(lease, spec=spec)

    @property
    def _duration_seconds(self) -> int:
        return max(1, round(self._timings.lease_duration))

    async def _release(self) -> None:
        lease, led = self._lease, self.leading
        self.leader, self._renewed_at = "", float("-inf")
        if lease is None or not led:
            return
        with suppress(KubernetesUnavailable, KubernetesRefused, TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                try:
                    await self._client.replace(LEASES, _released(lease))
                except Conflict:
                    # A renewal in flight at shutdown has gone through: release the version that it wrote.
                    now = await self._read()
                    if now is not None and now.spec.holder_identity == self.identity:
                        await self._client.replace(LEASES, _released(now))


def _released(lease: Lease) -> Lease:
    spec = structs.replace(
        lease.spec,
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=lease.spec.acquire_time and micro_time(lease.spec.acquire_time),
        renew_time=lease.spec.renew_time and micro_time(lease.spec.renew_time),
    )
    return structs.replace(lease, spec=spec)
