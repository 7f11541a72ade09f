"""The rest of gpufleet beside the demo's server: scheduler and webhook, so that users can ask for GPUs.

Both are what they are elsewhere. The scheduler follows the API and binds pods by its stand-alone loop; the
webhook is called by the API over HTTPS, with certificates of its own that it shares in a Secret. An example
to apply is written beside the kubeconfig.
"""

import asyncio
from pathlib import Path

from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.client.connection import connection_from_settings
from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings, StoreSettings, WebhookSettings
from gpufleet.scheduler.process import Replica
from gpufleet.server.wiring.components import Components
from gpufleet.webhook.certificate_store import SharedKeys, serving_context
from gpufleet.webhook.configuration import configurations
from gpufleet.webhook.pod_admission import PodRules
from gpufleet.webhook.server import Webhook, serving
from gpufleet.webhook.watched_claims import WatchedClaims
from kubelite.storage.direct import Storage

TRIAL = "trial.yaml"
"""The name of the example."""

_HOST = "127.0.0.1"
_EXAMPLE = """\
# Two GPUs on one island, and a pod that gets them:
#   kubectl apply -f trial.yaml
#   kubectl get gclaim,pod trial
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: trial
spec:
  schedulerName: gpu-scheduler    # the webhook writes it into pods that name this claim
  devices:
    count: 2
  topology:
    mode: Required
---
apiVersion: v1
kind: Pod
metadata:
  name: trial
  annotations:
    gpu.scheduling/claim: trial
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: busybox
      command: ["sleep", "3600"]
"""


async def open_trial(parts: Components, storage: Storage) -> None:
    """Schedule pods and admit them, in the background."""
    kubernetes = parts.settings[KubernetesSettings]
    parts.background.start("scheduler", lambda: _schedule(kubernetes))
    await _admit(parts, kubernetes, storage)
    await asyncio.to_thread(_write_example, parts.settings[StoreSettings].data / TRIAL)


async def _schedule(kubernetes: KubernetesSettings) -> None:
    settings = SchedulerSettings(standalone=True)
    client = KubeClient(
        connection_from_settings(kubernetes),
        requests_per_second=settings.requests_per_second,
        burst=settings.burst,
        timeout=kubernetes.timeout,
        field_manager="gpufleet-scheduler",
    )
    async with client:
        await Replica(client, settings, kubernetes.lease_namespace, "demo").run()


async def _admit(parts: Components, kubernetes: KubernetesSettings, storage: Storage) -> None:
    settings = WebhookSettings(names=(_HOST,))
    client = await parts.closing.enter_async_context(KubeClient.from_settings(kubernetes))
    context = serving_context()
    keys = SharedKeys(client, settings, context)
    await keys.look()
    claims = WatchedClaims(client)
    webhook = Webhook(
        claims,
        PodRules(settings.variables, frozenset(settings.schedulers), settings.device_requests == "refuse"),
    )
    port = await parts.closing.enter_async_context(serving(webhook, _HOST, 0, context, drain=0.0))
    storage.put(configurations({"url": f"https://{_HOST}:{port}"}))
    await keys.look()
    parts.background.start("claims of the webhook", claims.watch.run)
    parts.background.start("certificates of the webhook", keys.run)


def _write_example(path: Path) -> None:
    path.write_text(_EXAMPLE)
