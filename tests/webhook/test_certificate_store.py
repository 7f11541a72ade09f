"""Certificates are made, shared and renewed without failing a request."""

import asyncio
import base64
import io
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.webhook.conftest import HOOKS, PODS, SETTINGS, Cluster, pod

from gpufleet.errors import SettingsError
from gpufleet.kubernetes.certificates.keyring import Keyring, new_keyring, renewed
from gpufleet.kubernetes.certificates.store import SECRETS, load, serving_context
from gpufleet.runtime.settings import WebhookSettings
from gpufleet.webhook.certificate_store import FileCertificates, WebhookCertificates, names_of
from gpufleet.webhook.configuration import configurations

NOW = 1_700_000_000.0
NAMES = ("hook.gpufleet.svc", "127.0.0.1")


def verifies(trusted: bytes, ring: Keyring, now: float) -> bool:
    """Whether a client that trusts `trusted` would take the serving certificate at `now`."""
    serving = x509.load_pem_x509_certificate(ring.certificate)
    for authority in x509.load_pem_x509_certificates(trusted):
        try:
            serving.verify_directly_issued_by(authority)
        except (ValueError, InvalidSignature):
            continue
        valid = all(
            c.not_valid_before_utc.timestamp() <= now < c.not_valid_after_utc.timestamp()
            for c in (serving, authority)
        )
        if valid:
            return True
    return False


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(2, 20), min_size=20, max_size=40))
def test_a_client_with_a_slightly_old_bundle_trusts_the_current_certificate(steps: list[float]) -> None:
    """Replicas look at odd times; the API server hears of a bundle up to `settle` seconds late."""
    lifetime, settle = 100.0, 10.0
    now = NOW
    ring = new_keyring(NAMES, now, lifetime)
    bundles = [(now, ring.bundle)]
    rotations = 0
    for step in steps * 3:
        now += step
        while (next_ring := renewed(ring, NAMES, now, lifetime, settle)) is not None:
            rotations += next_ring.certificate != ring.certificate
            ring = next_ring
            bundles.append((now, ring.bundle))
        late = [bundle for since, bundle in bundles if since <= now - settle] or [bundles[0][1]]
        assert verifies(ring.bundle, ring, now)
        assert verifies(late[-1], ring, now)
    assert rotations


def test_a_new_name_makes_a_new_certificate_under_the_same_authority() -> None:
    ring = new_keyring(NAMES, NOW, 1000)
    assert renewed(ring, NAMES, NOW + 600, 1000, 10) is None
    more = renewed(ring, (*NAMES, "other.svc"), NOW + 1, 1000, 10)
    assert more is not None
    assert more.authorities == ring.authorities
    assert more.certificate != ring.certificate


def test_the_names_are_those_of_the_service() -> None:
    assert names_of(WebhookSettings(namespace="gpu", service="hook", names=("10.0.0.1",))) == (
        "hook.gpu.svc",
        "hook.gpu.svc.cluster.local",
        "hook.gpu",
        "10.0.0.1",
    )


async def test_replicas_that_start_together_share_one_authority(cluster: Cluster) -> None:
    replicas = [WebhookCertificates(cluster.client, SETTINGS, serving_context()) for _ in range(6)]
    await asyncio.gather(*(replica.refresh() for replica in replicas))
    rings = {replica.ring for replica in replicas}
    assert len(rings) == 1
    secret = await cluster.client.get(SECRETS, SETTINGS.secret, "gpufleet")
    assert set(secret.data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


async def test_replicas_that_start_together_all_come_up_and_are_trusted(cluster: Cluster) -> None:
    for manifest in configurations({"url": "https://127.0.0.1:1"}):
        await cluster.client.write_json("POST", f"{HOOKS}/{manifest['kind'].lower()}s", manifest)
    replicas = [WebhookCertificates(cluster.client, SETTINGS, serving_context()) for _ in range(4)]
    await asyncio.gather(*(replica.refresh() for replica in replicas))
    assert replicas[0].ring is not None
    found = await cluster.client.read_json(f"{HOOKS}/mutatingwebhookconfigurations/gpufleet-webhook")
    bundles = {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in found["webhooks"]}
    assert bundles == {replicas[0].ring.bundle}


async def test_replicas_that_renew_together_agree(cluster: Cluster) -> None:
    now = time.time()
    replicas = [
        WebhookCertificates(cluster.client, SETTINGS, serving_context(), lambda: now) for _ in range(4)
    ]
    await asyncio.gather(*(replica.refresh() for replica in replicas))
    first = replicas[0].ring
    now += 0.7 * SETTINGS.lifetime
    await asyncio.gather(*(replica.refresh() for replica in replicas))
    rings = {replica.ring for replica in replicas}
    assert len(rings) == 1
    assert replicas[0].ring != first


async def test_a_broken_secret_is_replaced_and_foreign_entries_stay(cluster: Cluster) -> None:
    keys = WebhookCertificates(cluster.client, SETTINGS, serving_context())
    await keys.refresh()
    secret = await cluster.client.get(SECRETS, SETTINGS.secret, "gpufleet")
    bent = {**secret.data, "tls.crt": base64.b64encode(b"nonsense").decode(), "note": "eA=="}
    await cluster.client.replace(SECRETS, structs.replace(secret, data=bent))
    await keys.refresh()
    found = await cluster.client.get(SECRETS, SETTINGS.secret, "gpufleet")
    assert found.data["note"] == "eA=="
    assert keys.ring is not None
    assert base64.b64decode(found.data["tls.crt"]) == keys.ring.certificate


async def test_the_ca_bundle_is_restored(cluster: Cluster) -> None:
    async with cluster.webhook() as running:
        path = f"{HOOKS}/mutatingwebhookconfigurations/gpufleet-webhook"
        found = await cluster.client.read_json(path)
        found["webhooks"][1]["clientConfig"]["caBundle"] = ""
        await cluster.client.write_json("PUT", path, found)
        await running.keys.refresh()
        found = await cluster.client.read_json(path)
        assert running.keys.ring is not None
        bundles = {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in found["webhooks"]}
        assert bundles == {running.keys.ring.bundle}


async def test_certificates_and_authorities_rotate_under_load_and_no_request_is_lost(
    cluster: Cluster,
) -> None:
    await cluster.claim()
    quick = structs_replace(SETTINGS, lifetime=10.0, check=0.05)
    started = time.time()
    # Twenty times as fast as life: an authority of 100 s is renewed within the test.
    clock = lambda: started + 20 * (time.time() - started)  # noqa: E731
    served: set[bytes] = set()
    bundles: set[bytes] = set()
    async with cluster.webhook(quick, clock=clock) as running:
        rotating = asyncio.create_task(running.keys.run())
        answers = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (len(served) < 5 or len(bundles) < 2 or len(answers) <= 50):
            burst = [cluster.send("POST", f"{PODS}?dryRun=All", pod(f"p{n}")) for n in range(8)]
            answers += await asyncio.gather(*burst)
            assert running.keys.ring is not None
            served.add(running.keys.ring.certificate)
            bundles.add(running.keys.ring.bundle)
        rotating.cancel()
        await asyncio.gather(rotating, return_exceptions=True)
    assert [answer for answer in answers if "refused" in answer] == []
    assert len(served) >= 5
    assert len(bundles) >= 2
    assert len(answers) > 50


def structs_replace(group: WebhookSettings, **changes: Any) -> WebhookSettings:
    import dataclasses

    return dataclasses.replace(group, **changes)


async def test_certificate_files_are_served_and_reloaded(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    context = serving_context()
    files = FileCertificates(WebhookSettings(certificate_file=certificate, key_file=key, check=0.05), context)
    with pytest.raises(SettingsError, match=r"tls.crt: No such file"):
        await files.refresh()
    first, second = (new_keyring(("127.0.0.1",), time.time(), 1000) for _ in range(2))

    async def served(trusted: Keyring) -> bool:
        client = ssl.create_default_context(cadata=trusted.bundle.decode())
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            except ssl.SSLCertVerificationError:
                return False
            writer.close()
            return True

    certificate.write_bytes(first.certificate)
    key.write_bytes(first.key)
    await files.refresh()
    assert await served(first)
    certificate.write_bytes(second.certificate)
    with pytest.raises(SettingsError, match="do not belong together"):
        await files.refresh()
    key.write_bytes(second.key)
    await files.refresh()
    assert await served(second)
    assert not await served(first)


def test_one_file_of_two_is_refused() -> None:
    with pytest.raises(SettingsError, match="give both"):
        FileCertificates(WebhookSettings(certificate_file=Path("x")), serving_context())


async def test_the_port_refuses_malformed_reviews(cluster: Cluster) -> None:
    async with cluster.webhook() as running, aiohttp.ClientSession() as session:
        assert running.keys.ring is not None
        trusted = ssl.create_default_context(cadata=running.keys.ring.bundle.decode())
        url = f"https://127.0.0.1:{running.port}"
        for path, body, status in (
            ("/mutate", b"{", 400),
            ("/mutate", b"{}", 400),
            ("/mutate", b"[" * 100_000, 400),
            ("/nothing", b"", 404),
        ):
            async with session.post(url + path, data=body, ssl=trusted) as answer:
                assert answer.status == status
        async with session.get(url + "/mutate", ssl=trusted) as answer:
            assert answer.status == 405
        async with session.post(url + "/mutate", data=io.BytesIO(b" " * (9 * 2**20)), ssl=trusted) as answer:
            assert answer.status == 413
        async with session.get(url + "/readyz", ssl=trusted) as answer:
            assert answer.status == 200
        async with session.get(url + "/metrics", ssl=trusted) as answer:
            assert (
                'gpufleet_webhook_reviews_total{path="/mutate",result="malformed"} 3.0' in await answer.text()
            )


def test_loading_a_certificate_needs_no_writable_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))  # as with a read-only root
    ring = new_keyring(NAMES, time.time(), 1000)
    load(serving_context(), ring.certificate, ring.key)
