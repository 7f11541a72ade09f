"""A complete webhook, called over TLS by an embedded Kubernetes API."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpufleet.kubernetes import KubeClient, load_connection
from gpufleet.kubernetes.certificates.store import serving_context
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.runtime.listening import bind
from gpufleet.runtime.settings import WebhookSettings
from gpufleet.webhook.certificate_store import WebhookCertificates
from gpufleet.webhook.claim_lookup import ClaimLookup
from gpufleet.webhook.configuration import configurations
from gpufleet.webhook.pod_admission import PodRules
from gpufleet.webhook.server import Webhook
from kubelite import KubeLite

Json = dict[str, Any]
PODS = "/api/v1/namespaces/jobs/pods"
CLAIMS = "/apis/gpu.scheduling/v1/namespaces/jobs/gpuclaims"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
RULES = PodRules()
SETTINGS = WebhookSettings(namespace="gpufleet", names=("127.0.0.1",))


@dataclass
class Cluster:
    server: KubeLite
    client: KubeClient
    session: aiohttp.ClientSession
    warnings: list[str] = field(default_factory=list)

    async def send(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        """One request; what the webhook warned of is in `warnings`."""
        async with self.session.request(method, path, json=body, headers={"Content-Type": kind}) as answer:
            self.warnings = [text.split('"')[1] for text in answer.headers.getall("Warning", [])]
            found: Json = await answer.json()
            return found if answer.status < 300 else {"refused": answer.status, "message": found["message"]}

    @asynccontextmanager
    async def webhook(
        self, settings: WebhookSettings = SETTINGS, rules: PodRules = RULES, *, clock: Callable[[], float] | None = None
    ) -> AsyncIterator["Running"]:  # fmt: skip
        context = serving_context()
        keys = WebhookCertificates(self.client, settings, context, **({"clock": clock} if clock else {}))
        async with AsyncExitStack() as closing:
            await keys.refresh()
            webhook = Webhook(ClaimLookup(self.client), rules)
            listening = bind("127.0.0.1", 0)
            await closing.enter_async_context(webhook.listener().serving(listening, tls=context))
            port = listening.getsockname()[1]
            for manifest in configurations({"url": f"https://127.0.0.1:{port}"}):
                plural = manifest["kind"].lower() + "s"
                await self.send("DELETE", f"{HOOKS}/{plural}/gpufleet-webhook")
                await self.client.write_json("POST", f"{HOOKS}/{plural}", manifest)
            await keys.refresh()
            yield Running(keys, port)

    async def claim(self, name: str = "two", **spec: Any) -> None:
        body = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"count": 2}, **spec},
        }
        await self.client.write_json("POST", CLAIMS, body)


@dataclass
class Running:
    keys: WebhookCertificates
    port: int


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with KubeLite() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        connection = load_connection(str(tmp_path / "kubeconfig"))
        async with (
            KubeClient(connection, requests_per_second=500, burst=500) as client,
            aiohttp.ClientSession(server.url, headers=server.headers) as session,
        ):
            for definition in definitions():
                await client.write_json(
                    "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
                )
            for name in ("gpufleet", "jobs"):
                await client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            yield Cluster(server, client, session)


def pod(name: str = "train", claim: str | None = "two", **changes: Any) -> Json:
    """A pod with an init container and two containers."""
    notes = {"gpu.scheduling/claim": claim} if claim is not None else {}
    return {
        "metadata": {"name": name, "annotations": {**notes, **changes.pop("annotations", {})}},
        "spec": {
            "initContainers": [{"name": "fetch", "image": "i"}],
            "containers": [{"name": "main", "image": "i"}, {"name": "side", "image": "i"}],
            **changes,
        },
    }
