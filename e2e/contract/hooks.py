"""Webhooks: a real HTTPS endpoint that the server under test calls."""

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

from e2e.contract.server import Api
from e2e.contract.things import Json, config_map

Judge = Callable[[Json], Json]
_GROUP = "/apis/admissionregistration.k8s.io/v1"


@dataclass
class Endpoint:
    """A webhook that runs: where it is, whom to trust, and what it was asked."""

    url: str
    authority: str
    asked: list[Json] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)


@asynccontextmanager
async def endpoint(judge: Judge) -> AsyncIterator[Endpoint]:
    """A webhook on loopback that answers what `judge` says."""
    certificate, key = _certificate()
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "chain.pem"
        chain.write_bytes(certificate + key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(chain)
    heard = Endpoint("", base64.b64encode(certificate).decode())

    async def review(request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())["request"]
        heard.asked.append(asked)
        heard.connections.add(request.transport and request.transport.get_extra_info("peername"))
        response = {"uid": asked["uid"], "allowed": True, **judge(asked)}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    runner = web.ServerRunner(web.Server(review))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    heard.url = f"https://127.0.0.1:{runner.addresses[0][1]}/admit"
    try:
        yield heard
    finally:
        await runner.cleanup()


def _certificate() -> tuple[bytes, bytes]:
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
async def configured(api: Api, kind: str, url: str, authority: str, **options: object) -> AsyncIterator[None]:
    """A webhook configuration for the ConfigMaps of the test's namespace, in force."""
    plural = f"{kind.lower()}webhookconfigurations"
    hook = {
        "name": "judge.gpufleet.example",
        "clientConfig": {"url": url, "caBundle": authority},
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


async def _in_force(api: Api, heard: Endpoint) -> None:
    """The real server takes a moment until it calls a new webhook."""

    async def called() -> bool:
        await api.post(api.path("configmaps"), config_map("probe", labels={"watched": "yes"}), dryRun="All")
        return bool(heard.asked)

    await api.until("the webhook is called", called)
    heard.asked.clear()


def _patch(*operations: Json) -> Json:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


class Hooks:
    """Webhooks are called, and obeyed."""

    async def test_a_mutating_webhook_changes_what_is_stored(self, api: Api) -> None:
        def judge(asked: Json) -> Json:
            patch = _patch({"op": "add", "path": "/metadata/annotations", "value": {"touched": "yes"}})
            return {**patch, "warnings": ["this is looked at"]}

        async with endpoint(judge) as heard, configured(api, "Mutating", heard.url, heard.authority):
            await _in_force(api, heard)
            answer = await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))
            assert answer.ok(201)["metadata"]["annotations"] == {"touched": "yes"}
            assert "this is looked at" in answer.warnings[0]
            asked = heard.asked[0]
            assert (asked["operation"], asked["namespace"], asked["name"]) == ("CREATE", api.namespace, "a")
            assert asked["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
            assert asked["object"]["data"] == {"k": "v"}
            assert asked["oldObject"] is None
            assert asked["userInfo"]["username"]
            assert asked["dryRun"] is False

    async def test_an_answer_that_comes_in_many_pieces_is_read_whole(self, api: Api) -> None:
        large = "x" * 600_000
        judge = lambda _asked: _patch({"op": "add", "path": "/data", "value": {"k": large}})  # noqa: E731
        async with endpoint(judge) as heard, configured(api, "Mutating", heard.url, heard.authority):
            await _in_force(api, heard)
            assert (await api.post(api.path("configmaps"), config_map("a"))).ok(201)["data"] == {"k": large}

    async def test_calls_one_after_another_share_a_connection(self, api: Api) -> None:
        async with (
            endpoint(lambda _asked: {}) as heard,
            configured(api, "Validating", heard.url, heard.authority),
        ):
            await _in_force(api, heard)
            for _ in range(20):
                (await api.post(api.path("configmaps"), config_map("a"), dryRun="All")).ok(201)
            assert len(heard.asked) == 20
            assert len(heard.connections) <= 3

    async def test_a_validating_webhook_refuses(self, api: Api) -> None:
        def judge(asked: Json) -> Json:
            if asked["operation"] == "DELETE":
                return {"allowed": False, "status": {"message": "it is needed"}}
            bad = asked["object"].get("data", {}).get("k") == "bad"
            return {"allowed": not bad, "status": {"message": "not this", "code": 418}} if bad else {}

        async with endpoint(judge) as heard, configured(api, "Validating", heard.url, heard.authority):
            await _in_force(api, heard)
            (await api.post(api.path("configmaps"), config_map("a", {"k": "good"}))).ok(201)
            words = 'admission webhook "judge.gpufleet.example" denied the request: not this'
            (await api.post(api.path("configmaps"), config_map("b", {"k": "bad"}))).refused(418, words)
            (await api.patch(api.path("configmaps", "a"), {"data": {"k": "bad"}})).refused(418)
            assert heard.asked[-1]["oldObject"]["data"] == {"k": "good"}
            (await api.delete(api.path("configmaps", "a"))).refused(400, "it is needed")
            assert heard.asked[-1]["object"] is None
            assert (await api.get(api.path("configmaps", "a"))).ok()["data"] == {"k": "good"}

    async def test_selectors_and_conditions_limit_the_calls(self, api: Api) -> None:
        options = {
            "objectSelector": {"matchLabels": {"watched": "yes"}},
            "matchConditions": [
                {"name": "not-quiet", "expression": "!has(object.data) || !('quiet' in object.data)"}
            ],
        }
        async with (
            endpoint(lambda _asked: {}) as heard,
            configured(api, "Validating", heard.url, heard.authority, **options),
        ):
            await _in_force(api, heard)
            (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
            (
                await api.post(
                    api.path("configmaps"), config_map("b", {"quiet": "1"}, labels={"watched": "yes"})
                )
            ).ok(201)
            (await api.post(api.path("configmaps"), config_map("c", labels={"watched": "yes"}))).ok(201)
            assert [asked["name"] for asked in heard.asked] == ["c"]

    async def test_a_webhook_that_does_not_answer_fails_or_is_ignored(self, api: Api) -> None:
        async with endpoint(lambda _asked: {}) as heard:
            url, authority = heard.url, heard.authority
        async with configured(api, "Validating", url, authority, failurePolicy="Fail"):

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
        async with configured(api, "Mutating", url, authority, failurePolicy="Ignore"):

            async def accepted() -> bool:
                return (
                    await api.post(api.path("configmaps"), config_map("probe"), dryRun="All")
                ).status == 201

            await api.until("the failing configuration is out of force", accepted)
            (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
