"""Leader election on a Lease, by the rules that Kubernetes' own components follow.

Who holds the lease renews it; who doesn't takes it over once it has not changed for its
duration *by the candidate's own clock*, so that clocks that disagree do no harm. Every
write carries the version that was read: of two candidates one gets a conflict. A leader
that can't renew in time stops leading before anybody else can start, and one that ends
gives the lease back, so that the next need not wait.
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

_GIVE_BACK = 2.0
"""Seconds that a leader which ends takes at most to give its lease back."""


@dataclass(frozen=True)
class Terms:
    """Seconds: how long a lease is good for, how long the leader tries to renew it, how long between tries."""

    duration: float = 15.0
    renew_within: float = 10.0
    retry: float = 2.0


class LeaderElection:
    """One candidate for the lease `name`; `identity` must be this process's alone."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms = Terms(),  # noqa: B008  (frozen)
    ) -> None:
        self.identity = identity
        self.leader = ""
        # A thousand binds that wait for their turn must not cost the leader its lease.
        self._client = client.apart()
        self._namespace = namespace
        self._name = name
        self._terms = terms
        self._timing = client.timing
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self._lease: Lease | None = None
        self._renewed_at = float("-inf")

    @property
    def leading(self) -> bool:
        """Whether this process leads; false as soon as it could not renew in time, whatever else happens."""
        age = self._timing.monotonic() - self._renewed_at
        return self.leader == self.identity and age < self._terms.renew_within

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership and run `lead` while it lasts, again and again; ends when `lead` does.

        `lead` is cancelled when leadership is lost.
        """
        try:
            while True:
                await self._until_elected()
                _log.info("leading", lease=self._name, identity=self.identity)
                if await self._lead_while_elected(lead):
                    return
                _log.warning(
                    "no longer leading", lease=self._name, identity=self.identity, leader=self.leader
                )
        finally:
            try:
                await self._give_back()
            finally:
                await self._client.close()

    async def _until_elected(self) -> None:
        while not await self._try():
            await self._pause()

    async def _lead_while_elected(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Whether `lead` came to its own end."""
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
            left = self._renewed_at + self._terms.renew_within - self._timing.monotonic()
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
        await self._timing.sleep(self._terms.retry * (1 + 0.2 * self._timing.random()))

    async def _try(self) -> bool:
        """Take or renew the lease; whether that worked."""
        asked_at = self._timing.monotonic()
        try:
            lease = await self._read()
            if lease is None:
                taken = await self._client.create(LEASES, self._fresh())
            elif self._held_by_another(lease.spec):
                return False
            else:
                taken = await self._client.replace(LEASES, self._mine(lease))
        except Conflict:
            return False
        except (KubernetesUnavailable, KubernetesRefused) as error:
            _log.warning("lease not renewed", lease=self._name, error=str(error))
            return False
        self._lease, self.leader, self._renewed_at = taken, self.identity, asked_at
        self._seen, self._seen_at = taken.spec, asked_at
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
        duration = spec.lease_duration_seconds or self._terms.duration
        return self._timing.monotonic() < self._seen_at + duration

    def _fresh(self) -> Lease:
        now = micro_time(self._timing.now())
        meta = ObjectMeta(name=self._name, namespace=self._namespace)
        return Lease(metadata=meta, spec=self._spec(acquire_time=now, renew_time=now, lease_transitions=0))

    def _mine(self, lease: Lease) -> Lease:
        now = micro_time(self._timing.now())
        ours = lease.spec.holder_identity == self.identity
        transitions = (lease.spec.lease_transitions or 0) + (not ours)
        spec = structs.replace(
            lease.spec,
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._terms.duration)),
            acquire_time=micro_time(lease.spec.acquire_time or now) if ours else now,
            renew_time=now,
            lease_transitions=transitions,
        )
        return structs.replace(lease, spec=spec)

    def _spec(self, **fields: object) -> LeaseSpec:
        held = LeaseSpec(
            holder_identity=self.identity, lease_duration_seconds=max(1, round(self._terms.duration))
        )
        return structs.replace(held, **fields)

    async def _give_back(self) -> None:
        lease, led = self._lease, self.leading
        self.leader, self._renewed_at = "", float("-inf")
        if lease is None or not led:
            return
        with suppress(KubernetesUnavailable, KubernetesRefused, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK):
                try:
                    await self._client.replace(LEASES, _freed(lease))
                except Conflict:
                    # A renewal that was under way when this process was told to end has been done.
                    now = await self._read()
                    if now is not None and now.spec.holder_identity == self.identity:
                        await self._client.replace(LEASES, _freed(now))


def _freed(lease: Lease) -> Lease:
    free = structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
    return structs.replace(lease, spec=_sendable(free))


def _sendable(spec: LeaseSpec) -> LeaseSpec:
    return structs.replace(
        spec,
        acquire_time=spec.acquire_time and micro_time(spec.acquire_time),
        renew_time=spec.renew_time and micro_time(spec.renew_time),
    )
