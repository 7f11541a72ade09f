"""The rest of gpufleet beside the demo's server: scheduler and webhook, so that users can ask for GPUs.

Both are what they are elsewhere. The scheduler follows the API and binds pods by its stand-alone loop; the
webhook is called by the API over HTTPS, with certificates of its own that it shares in a Secret. An example
to apply is written beside the kubeconfig.
"""

import asyncio
from pathlib import Path

from gpufleet.kubernetes import KubeClient
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings, StoreSettings, WebhookSettings
from gpufleet.scheduler.process import Replica, scheduler_client
from gpufleet.server.wiring.components import Components
from gpufleet.webhook.certificate_store import SharedCertificates, serving_context
from gpufleet.webhook.claim_lookup import ClaimLookup
from gpufleet.webhook.configuration import configurations
from gpufleet.webhook.pod_admission import PodRules
from gpufleet.webhook.server import Webhook
from kubelite.storage.direct import DirectStorage

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


async def open_trial(parts: Components, storage: DirectStorage) -> None:
    """Schedule pods and admit them, in the background."""
    kubernetes = parts.settings[KubernetesSettings]
    parts.background.start("scheduler", lambda: _schedule(kubernetes))
    await _admit(parts, kubernetes, storage)
    await asyncio.to_thread(_write_example, parts.settings[StoreSettings].data / TRIAL)


async def _schedule(kubernetes: KubernetesSettings) -> None:
    settings = SchedulerSettings(standalone=True)
    async with scheduler_client(settings, kubernetes) as client:
        await Replica(client, settings, kubernetes.lease_namespace, "demo").run()


async def _admit(parts: Components, kubernetes: KubernetesSettings, storage: DirectStorage) -> None:
    settings = WebhookSettings(names=(_HOST,))
    client = await parts.exit_stack.enter_async_context(KubeClient.from_settings(kubernetes))
    context = serving_context()
    keys = SharedCertificates(client, settings, context)
    await keys.refresh()
    claims = ClaimLookup(client)
    webhook = Webhook(claims, PodRules.from_settings(settings))
    listening = bind(_HOST, 0)
    await parts.exit_stack.enter_async_context(webhook.listener().serving(listening, tls=context))
    storage.put(configurations({"url": address_of(listening, "https")}))
    await keys.refresh()
    parts.background.start("claims of the webhook", claims.watch.run)
    parts.background.start("certificates of the webhook", keys.run)


def _write_example(path: Path) -> None:
    path.write_text(_EXAMPLE)
