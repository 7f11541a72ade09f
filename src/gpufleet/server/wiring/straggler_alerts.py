"""Report stragglers and jobs that hang. Agents do not see them, so `gpufleet repair` does not report them."""

from collections.abc import Mapping
from datetime import UTC, datetime

from gpufleet.fleet.stragglers import Straggler, StragglerWatch
from gpufleet.gpus.rules import advice
from gpufleet.repair.finding_alerts import FindingAlerts, OpenFinding
from gpufleet.runtime.settings import AlertSettings
from gpufleet.server.wiring.components import Components
from gpufleet.store import lead


def start_straggler_alerts(components: Components, watches: Mapping[str, StragglerWatch]) -> None:
    """Send alerts from one server of those that share the database, if a receiver is configured."""
    settings = components.settings[AlertSettings]
    if not (settings.webhook or settings.alertmanager or settings.smtp):
        return
    alerts = FindingAlerts(
        settings,
        lambda: [
            finding_of(cluster, each) for cluster, watch in watches.items() for each in watch.stragglers()
        ],
        lambda: [each for source in components.kubernetes_sources.values() for each in source.repairs()],
    )
    components.background.start(
        "alerts", lambda: lead(lambda: components.store.leadership("alerts"), alerts.run)
    )


def finding_of(cluster: str, straggler: Straggler) -> OpenFinding:
    """Return the alert about a straggler."""
    signal = straggler.signal
    where = [f"node {straggler.node}"] if straggler.node else []
    where += [f"pod {straggler.pod}"] if straggler.pod else []
    where += [f"GPU {straggler.gpu}"] if straggler.gpu is not None else []
    rank = "" if straggler.rank is None else f" rank {straggler.rank}"
    suspect = f", suspect{rank} ({', '.join(where)})" if where else f", suspect{rank}" if rank else ""
    job = f"{straggler.namespace}/{straggler.workload}"
    problem = "hangs" if signal == "hang" else "is held up"
    text = f"Job {job} of cluster {cluster} {problem}: {straggler.message}{suspect}. {advice(signal, 'none')}"
    key = f"{cluster}/{straggler.workload_uid}/{straggler.rank}/{straggler.quantity}"
    since = datetime.fromtimestamp(straggler.since, UTC)
    return OpenFinding(key, straggler.node, signal, "Degraded", text, since)
