"""Show on `/api/healthz` and `/metrics` who leads the accounting, and how far this server's clock is off.

Every server reads the leader from the database, so that each of them can tell that there is none.
"""

import time

from gpufleet.errors import StoreUnavailable
from gpufleet.runtime.settings import StoreSettings
from gpufleet.server.wiring.components import Components
from gpufleet.store.postgres.leadership import leader_state
from gpufleet.store.prune import time_of

_PATIENCE = 30.0
"""Seconds without a leader, after the start of this server or the end of a lease, before there is said to be none."""

_MAX_SILENCE = 300.0
"""Seconds in which a leader stores something of at least one cluster."""


def watch_leader(components: Components) -> None:
    """Add the dependency `accounting` and the metrics of its leader."""
    store, metrics = components.store, components.metrics
    started, seen = time.monotonic(), {"epoch": 0.0, "held": 0.0}

    async def probe() -> str:
        leader = await leader_state(store.database, "accounting")
        stored = await time_of(store)
        seen["epoch"], seen["held"] = float(leader.epoch if leader else 0), float(bool(stored.held))
        new = time.monotonic() - started < _PATIENCE
        silence = stored.now - (stored.newest or stored.now)
        if leader is None and silence <= _MAX_SILENCE:
            return "a leader is being elected, or a server of an earlier version leads"
        if leader is None or leader.expired_for > (0 if new else _PATIENCE):
            if new:
                return "a leader is being elected"
            raise StoreUnavailable("no server leads the accounting, so no snapshots and hours are stored")
        if silence > _MAX_SILENCE and not new:
            raise StoreUnavailable(
                f"{leader.holder} leads the accounting (epoch {leader.epoch}) but has stored nothing for {silence:.0f} s"
            )
        parts = [f"{leader.holder} leads (epoch {leader.epoch})", *_ages(components)]
        if stored.held:
            parts.append(f"nothing is pruned until gpufleet db prune --confirm, because {stored.held}")
        return "; ".join(parts)

    components.probes["accounting"] = probe
    metrics.gauge(
        "gpufleet_accounting_leader",
        "Whether this server leads the accounting.",
        lambda: float(store.fence("accounting") is not None),
    )
    metrics.gauge(
        "gpufleet_accounting_epoch", "How often the leader has changed, as last seen.", lambda: seen["epoch"]
    )
    metrics.gauge("gpufleet_pruning_held", "Whether pruning waits for an operator.", lambda: seen["held"])


def _ages(components: Components) -> list[str]:
    """Return the age of the newest snapshot and hour of the cluster whose data is oldest."""
    known = [account.progress for account in components.accounts if account.progress is not None]
    if not known:
        return []
    now = time.time()
    snapshot, hours = now - min(each.snapshot for each in known), now - min(each.hours for each in known)
    return [
        f"newest snapshot {max(0, snapshot) / 60:.0f} min ago, last hour {max(0, hours) / 60:.0f} min ago"
    ]


def watch_clock(components: Components) -> None:
    """Add the dependency `clock` and its metric: the difference between this server's clock and the database's."""
    store, limit = components.store, components.settings[StoreSettings].clock_skew_warning
    ahead = 0.0

    async def probe() -> str:
        nonlocal ahead
        before = time.time()
        stored = await store.database.now()
        after = time.time()
        # Anywhere between the two: a slow answer is no wrong clock.
        ahead = 0.0 if before <= stored <= after else before - stored if stored < before else after - stored
        sentence = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database's clock"
        if abs(ahead) > limit:
            raise StoreUnavailable(f"this server's clock is {sentence}; check its time synchronization")
        return sentence

    components.probes["clock"] = probe
    components.metrics.gauge(
        "gpufleet_clock_ahead_seconds",
        "How far this server's clock is ahead of the database's.",
        lambda: ahead,
    )
