"""Admission webhooks: the server under test calls a real HTTPS endpoint."""

import base64
import datetime
import ipaddress
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubelite.contract.client import Api
from kubelite.contract.resources import Json, config_map

Respond = Callable[[Json], Json]
_GROUP = "/apis/admissionregistration.k8s.io/v1"


@dataclass
class Endpoint:
    """A running webhook: its URL, its CA bundle, and the requests it received."""

    url: str
    ca_bundle: str
    requests: list[Json] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)


@asynccontextmanager
async def endpoint(respond: Respond) -> AsyncIterator[Endpoint]:
    """Serve a webhook on loopback that answers with the result of `respond`."""
    certificate, key = self_signed_certificate()
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "chain.pem"
        chain.write_bytes(certificate + key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(chain)
    webhook = Endpoint("", base64.b64encode(certificate).decode())

    async def review(http: web.BaseRequest) -> web.StreamResponse:
        request = json.loads(await http.read())["request"]
        webhook.requests.append(request)
        webhook.connections.add(http.transport and http.transport.get_extra_info("peername"))
        response = {"uid": request["uid"], "allowed": True, **respond(request)}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    runner = web.ServerRunner(web.Server(review))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    webhook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/admit"
    try:
        yield webhook
    finally:
        await runner.cleanup()


def self_signed_certificate() -> tuple[bytes, bytes]:
    """Return a certificate for 127.0.0.1 and its private key, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return made.public_bytes(serialization.Encoding.PEM), private


@asynccontextmanager
async def webhook_configuration(
    api: Api, kind: str, url: str, ca_bundle: str, **options: object
) -> AsyncIterator[None]:
    """Register a webhook for the ConfigMaps of the test's namespace while the context is open."""
    plural = f"{kind.lower()}webhookconfigurations"
    hook = {
        "name": "test.example.com",
        "clientConfig": {"url": url, "caBundle": ca_bundle},
        "rules": [
            {
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["configmaps"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
        **options,
    }
    path = f"{_GROUP}/{plural}"
    body = {"metadata": {"name": api.namespace}, "webhooks": [hook]}
    (await api.post(path, body)).ok(201)
    yield
    (await api.delete(f"{path}/{api.namespace}")).ok()


async def _wait_until_called(api: Api, webhook: Endpoint) -> None:
    """Wait until the server calls a new webhook: kube-apiserver takes a moment."""

    async def called() -> bool:
        await api.post(api.path("configmaps"), config_map("probe", labels={"watched": "yes"}), dryRun="All")
        return bool(webhook.requests)

    await api.until("the webhook is called", called)
    webhook.requests.clear()


def _patch(*operations: Json) -> Json:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


class TestWebhooks:
    """The server calls webhooks and follows their answers."""

    async def test_a_mutating_webhook_changes_what_is_stored(self, api: Api) -> None:
        def respond(request: Json) -> Json:
            patch = _patch({"op": "add", "path": "/metadata/annotations", "value": {"touched": "yes"}})
            return {**patch, "warnings": ["checked by the webhook"]}

        async with (
            endpoint(respond) as webhook,
            webhook_configuration(api, "Mutating", webhook.url, webhook.ca_bundle),
        ):
            await _wait_until_called(api, webhook)
            response = await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))
            assert response.ok(201)["metadata"]["annotations"] == {"touched": "yes"}
            assert "checked by the webhook" in response.warnings[0]
            request = webhook.requests[0]
            assert (request["operation"], request["namespace"], request["name"]) == (
                "CREATE",
                api.namespace,
                "a",
            )
            assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
            assert request["object"]["data"] == {"k": "v"}
            assert request["oldObject"] is None
            assert request["userInfo"]["username"]
            assert request["dryRun"] is False

    async def test_a_response_in_many_chunks_is_read_completely(self, api: Api) -> None:
        large = "x" * 600_000
        respond = lambda _request: _patch({"op": "add", "path": "/data", "value": {"k": large}})  # noqa: E731
        async with (
            endpoint(respond) as webhook,
            webhook_configuration(api, "Mutating", webhook.url, webhook.ca_bundle),
        ):
            await _wait_until_called(api, webhook)
            assert (await api.post(api.path("configmaps"), config_map("a"))).ok(201)["data"] == {"k": large}

    async def test_consecutive_calls_reuse_a_connection(self, api: Api) -> None:
        async with (
            endpoint(lambda _request: {}) as webhook,
            webhook_configuration(api, "Validating", webhook.url, webhook.ca_bundle),
        ):
            await _wait_until_called(api, webhook)
            for _ in range(20):
                (await api.post(api.path("configmaps"), config_map("a"), dryRun="All")).ok(201)
            assert len(webhook.requests) == 20
            assert len(webhook.connections) <= 3

    async def test_a_validating_webhook_refuses(self, api: Api) -> None:
        def respond(request: Json) -> Json:
            if request["operation"] == "DELETE":
                return {"allowed": False, "status": {"message": "still needed"}}
            bad = request["object"].get("data", {}).get("k") == "bad"
            return {"allowed": not bad, "status": {"message": "rejected value", "code": 418}} if bad else {}

        async with (
            endpoint(respond) as webhook,
            webhook_configuration(api, "Validating", webhook.url, webhook.ca_bundle),
        ):
            await _wait_until_called(api, webhook)
            (await api.post(api.path("configmaps"), config_map("a", {"k": "good"}))).ok(201)
            words = 'admission webhook "test.example.com" denied the request: rejected value'
            (await api.post(api.path("configmaps"), config_map("b", {"k": "bad"}))).refused(418, words)
            (await api.patch(api.path("configmaps", "a"), {"data": {"k": "bad"}})).refused(418)
            assert webhook.requests[-1]["oldObject"]["data"] == {"k": "good"}
            (await api.delete(api.path("configmaps", "a"))).refused(400, "still needed")
            assert webhook.requests[-1]["object"] is None
            assert (await api.get(api.path("configmaps", "a"))).ok()["data"] == {"k": "good"}

    async def test_selectors_and_conditions_limit_the_calls(self, api: Api) -> None:
        options = {
            "objectSelector": {"matchLabels": {"watched": "yes"}},
            "matchConditions": [
                {"name": "not-quiet", "expression": "!has(object.data) || !('quiet' in object.data)"}
            ],
        }
        async with (
            endpoint(lambda _request: {}) as webhook,
            webhook_configuration(api, "Validating", webhook.url, webhook.ca_bundle, **options),
        ):
            await _wait_until_called(api, webhook)
            (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
            (
                await api.post(
                    api.path("configmaps"), config_map("b", {"quiet": "1"}, labels={"watched": "yes"})
                )
            ).ok(201)
            (await api.post(api.path("configmaps"), config_map("c", labels={"watched": "yes"}))).ok(201)
            assert [request["name"] for request in webhook.requests] == ["c"]

    async def test_a_webhook_that_does_not_answer_fails_or_is_ignored(self, api: Api) -> None:
        async with endpoint(lambda _request: {}) as webhook:
            url, ca_bundle = webhook.url, webhook.ca_bundle
        async with webhook_configuration(api, "Validating", url, ca_bundle, failurePolicy="Fail"):

            async def refused() -> bool:
                return (
                    await api.post(api.path("configmaps"), config_map("probe"), dryRun="All")
                ).status == 500

            await api.until("the webhook is called", refused)
            body = (await api.post(api.path("configmaps"), config_map("a"))).refused(
                500, "failed calling webhook"
            )
            assert body["reason"] == "InternalError"
            (await api.get(api.path("configmaps", "a"))).refused(404)
        async with webhook_configuration(api, "Mutating", url, ca_bundle, failurePolicy="Ignore"):

            async def accepted() -> bool:
                return (
                    await api.post(api.path("configmaps"), config_map("probe"), dryRun="All")
                ).status == 201

            await api.until("the failing configuration is inactive", accepted)
            (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
