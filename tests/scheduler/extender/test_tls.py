"""The extender's ports: verbs for callers with a certificate of the shared CA, probes and metrics for all."""

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpufleet.errors import SettingsError
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.kubernetes.certificates.keyring import Keyring, new_keyring
from gpufleet.kubernetes.certificates.store import SECRETS, load, serving_context
from gpufleet.runtime.listening import bind
from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings
from gpufleet.runtime.settings.load import Settings
from gpufleet.scheduler.extender.certificates import (
    CA_ANNOTATION,
    CERTIFICATE_LIFETIME_S,
    SERVER_NAME,
    ExtenderCertificates,
)
from gpufleet.scheduler.process import run_scheduler
from kubelite import KubeLite

DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/gpu-kube-scheduler"
SETTINGS = SchedulerSettings(tls_secret="extender-tls", kube_scheduler="gpu-kube-scheduler")


def free_port() -> int:
    with bind("127.0.0.1", 0) as found:
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def running(server: KubeLite, folder: Path, **chosen: Any) -> AsyncIterator[str]:
    """Run the scheduler as its command does; yield the URL of its port."""
    kubeconfig = folder / "kubeconfig"
    server.write_kubeconfig(kubeconfig)
    settings = Settings(
        {
            SchedulerSettings: SchedulerSettings(**{"port": 0, **chosen}),
            KubernetesSettings: KubernetesSettings(kubeconfig=kubeconfig),
        }
    )
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    work = asyncio.ensure_future(run_scheduler(settings, started.set_result))
    try:
        await asyncio.wait((work, started), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        yield await started
    finally:
        work.cancel()
        await asyncio.wait((work,))


@asynccontextmanager
async def client_of(server: KubeLite) -> AsyncIterator[KubeClient]:
    async with KubeClient(Connection(server.url, token=server.token)) as client:
        yield client


async def status_of(url: str, context: ssl.SSLContext | None = None, method: str = "POST") -> int:
    tls: Any = context or True
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=b"{", ssl=tls, server_hostname=SERVER_NAME) as answer,
    ):
        return answer.status


def trusting(bundle: bytes, certificate: Keyring | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts `bundle` and may present a certificate."""
    context = ssl.create_default_context(cadata=bundle.decode())
    if certificate is not None:
        load(context, certificate.certificate, certificate.key)
    return context


async def secret_of(server: KubeLite) -> dict[str, bytes]:
    async with client_of(server) as client:
        secret = await client.get(SECRETS, "extender-tls", "default")
    return {key: base64.b64decode(value) for key, value in secret.data.items()}


async def test_verbs_need_a_certificate_of_the_shared_ca(server: KubeLite, tmp_path: Path) -> None:
    async with running(server, tmp_path, tls_secret="extender-tls") as url:
        assert url.startswith("https://")
        secret = await secret_of(server)
        authorized = trusting(secret["ca.crt"])
        load(authorized, secret["tls.crt"], secret["tls.key"])
        assert await status_of(f"{url}/filter", authorized) in (400, 503)
        stranger = new_keyring((SERVER_NAME,), time.time(), 1000)
        for context in (trusting(secret["ca.crt"]), trusting(secret["ca.crt"], stranger)):
            with pytest.raises(aiohttp.ClientError):
                await status_of(f"{url}/bind", context)


async def test_probes_and_metrics_have_a_port_of_their_own_without_verbs(
    server: KubeLite, tmp_path: Path
) -> None:
    port = free_port()
    async with running(server, tmp_path, tls_secret="extender-tls", metrics_port=port):
        url = f"http://127.0.0.1:{port}"
        assert await status_of(f"{url}/livez", method="GET") == 200
        assert await status_of(f"{url}/metrics", method="GET") == 200
        for verb in ("filter", "prioritize", "bind", "preempt"):
            assert await status_of(f"{url}/{verb}") == 404


async def test_verbs_without_tls_are_refused_beyond_loopback(server: KubeLite, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"set scheduler\.tls_secret"):
        async with running(server, tmp_path, host="0.0.0.0"):
            pass


async def test_the_stand_alone_scheduler_has_no_verbs(server: KubeLite, tmp_path: Path) -> None:
    async with running(server, tmp_path, standalone=True, host="0.0.0.0") as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert await status_of(f"{local}/livez", method="GET") == 200
        assert await status_of(f"{local}/bind") == 404


async def test_a_new_ca_restarts_kube_scheduler_before_it_signs(server: KubeLite) -> None:
    now = time.time()
    lifetime = CERTIFICATE_LIFETIME_S
    labels = {"app": "kube-scheduler"}
    body = {
        "metadata": {"name": "gpu-kube-scheduler"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    async with client_of(server) as client:
        await client.write_json("POST", DEPLOYMENT.rpartition("/")[0], body)

        async def annotations() -> dict[str, str]:
            found = await client.read_json(DEPLOYMENT)
            return found["spec"]["template"]["metadata"].get("annotations") or {}

        context = serving_context(client_certificates=True)
        certificates = ExtenderCertificates(client, SETTINGS, "default", context, lambda: now)

        async def refreshed() -> Keyring:
            await certificates.refresh()
            assert certificates.ring is not None
            return certificates.ring

        first = ring = await refreshed()
        assert await annotations() == {}, "kube-scheduler reads the first CA when it starts"
        while len(ring.authorities) == 1:
            now += lifetime / 3
            ring = await refreshed()
        assert ring.authorities[1:] == first.authorities
        restarted = await annotations()
        assert set(restarted) == {CA_ANNOTATION}
        now += 400
        later = await refreshed()
        assert later.authorities == ring.authorities
        assert later.certificate != ring.certificate, "signed by the new CA now"
        assert await annotations() == restarted
