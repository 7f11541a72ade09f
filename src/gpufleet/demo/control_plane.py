"""Run the scheduler and the webhook beside the demo's server, so that users can request GPUs.

Both are the real ones. The scheduler binds pods in its stand-alone mode. The API calls the webhook
over HTTPS, with certificates that it keeps in a Secret. An example to apply is written beside the
kubeconfig.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.certificates.store import serving_context
from gpufleet.runtime.listening import address_of, bind, is_loopback
from gpufleet.runtime.settings import (
    KubernetesSettings,
    SchedulerSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    WebhookSettings,
)
from gpufleet.scheduler.process import Replica, scheduler_client
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.login import has_login
from gpufleet.webhook.certificate_store import WebhookCertificates
from gpufleet.webhook.claim_lookup import ClaimLookup
from gpufleet.webhook.configuration import configurations
from gpufleet.webhook.pod_admission import PodRules
from gpufleet.webhook.server import Webhook
from kubelite import DirectStorage

EXAMPLE_FILE = "trial.yaml"
"""File name of the example."""

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
  schedulerName: gpu-scheduler    # the webhook sets it on pods that name this claim
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


async def start_control_plane(components: Components, storage: DirectStorage) -> None:
    """Start the scheduler and the webhook in the background, and write the example."""
    kubernetes = components.settings[KubernetesSettings]
    components.background.start("scheduler", lambda: _run_scheduler(components, kubernetes))
    await _start_webhook(components, kubernetes, storage)
    await asyncio.to_thread(_write_example, components.settings[StoreSettings].data / EXAMPLE_FILE)


async def _run_scheduler(components: Components, kubernetes: KubernetesSettings) -> None:
    while components.lifecycle.unready:  # noqa: ASYNC110 (it reads the use of GpuQueues from the server)
        await asyncio.sleep(0.1)
    settings = SchedulerSettings(standalone=True, server_url=_server_url(components.settings))
    async with scheduler_client(settings, kubernetes) as client:
        await Replica(client, settings, kubernetes.lease_namespace, "demo").run()


def _server_url(settings: Settings) -> str:
    """Return where the scheduler reads the use of queues; empty if it may not, then it counts what it sees."""
    server = settings[ServerSettings]
    open_to_all = is_loopback(server.host) and not has_login(settings)
    return f"http://{server.host}:{server.port}" if server.port and open_to_all else ""


async def _start_webhook(
    components: Components, kubernetes: KubernetesSettings, storage: DirectStorage
) -> None:
    settings = replace(components.settings[WebhookSettings], names=(_HOST,))
    client = await components.exit_stack.enter_async_context(KubeClient.from_settings(kubernetes))
    context = serving_context()
    certificates = WebhookCertificates(client, settings, context)
    await certificates.refresh()
    claims = ClaimLookup(client)
    webhook = Webhook(claims, PodRules.from_settings(settings))
    listening = bind(_HOST, 0)
    await components.exit_stack.enter_async_context(webhook.listener().serving(listening, tls=context))
    storage.put(configurations({"url": address_of(listening, "https")}))
    await certificates.refresh()
    components.background.start("webhook_claims", claims.watch.run)
    components.background.start("webhook_certificates", certificates.run)


def _write_example(path: Path) -> None:
    path.write_text(_EXAMPLE)
