"""The control plane of the end-to-end tests does what the other tests rely on."""

import contextlib
import http.client
from pathlib import Path

import pytest

from e2e.cluster import Cluster, CommandFailed, Refused
from e2e.cluster.rest import Rest


def test_kubectl_speaks_to_a_server_of_the_pinned_release(cluster: Cluster) -> None:
    assert f"Server Version: v{cluster.binaries.version}" in cluster.kubectl("version")
    assert "default" in cluster.kubectl("get", "namespaces")


def test_helm_installs_a_chart(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.helm("create", str(tmp_path / "chart"))
    cluster.helm("install", "it", str(tmp_path / "chart"), namespace=namespace)
    assert "deployed" in cluster.helm("list", namespace=namespace)
    assert "it-chart" in cluster.kubectl("get", "deployments", namespace=namespace)


def test_rbac_decides_what_a_user_may_do(cluster: Cluster, namespace: str) -> None:
    ann = cluster.user("ann", "trainers")
    with pytest.raises(CommandFailed, match='User "ann" cannot list resource "pods"'):
        cluster.kubectl("get", "pods", identity=ann, namespace=namespace)
    cluster.kubectl(
        "create", "rolebinding", "see", "--clusterrole=view", "--group=trainers", namespace=namespace
    )
    assert cluster.kubectl("get", "pods", "-o", "name", identity=ann, namespace=namespace) == ""


def test_a_service_account_is_who_its_token_says(cluster: Cluster, namespace: str) -> None:
    account = cluster.service_account(namespace, "default")
    said = cluster.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", identity=account)
    assert said == f"system:serviceaccount:{namespace}:default"


def test_the_audit_log_tells_who_wrote_a_lease_and_what(cluster: Cluster, namespace: str) -> None:
    since = cluster.audit_size()
    lease = {"metadata": {"name": "gpu-0"}, "spec": {"holderIdentity": "pod-a"}}
    cluster.api.create(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", lease)
    written = [
        record
        for record in cluster.audit(since)
        if record["verb"] == "create" and record["objectRef"].get("namespace") == namespace
    ]
    assert [record["user"]["username"] for record in written] == ["e2e-admin"]
    assert written[0]["requestObject"]["spec"]["holderIdentity"] == "pod-a"


def test_a_paused_server_answers_nothing_and_goes_on_after(cluster: Cluster) -> None:
    impatient = Rest(cluster.admin, timeout=0.5)
    with cluster.apiserver.paused(), pytest.raises(TimeoutError):
        impatient.get("/version")
    assert cluster.api.get("/version")["gitVersion"] == f"v{cluster.binaries.version}"


def test_a_restarted_server_has_kept_its_objects(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "kept", namespace=namespace)
    before = cluster.apiserver.pid
    cluster.apiserver.restart()
    assert cluster.apiserver.pid != before
    assert "kept" in cluster.kubectl("get", "configmaps", namespace=namespace)


def test_a_killed_controller_manager_comes_back_and_works(cluster: Cluster) -> None:
    cluster.controller_manager.kill()
    assert not cluster.controller_manager.running
    cluster.controller_manager.start()
    cluster.create_namespace("after-the-kill")
    cluster.api.delete("/api/v1/namespaces/after-the-kill")


def test_a_proxy_passes_is_cut_and_heals(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        api = Rest(admin, timeout=1)
        assert api.get("/version")
        proxy.cut()
        with pytest.raises(ConnectionRefusedError):
            api.get("/version")
        proxy.heal()
        assert api.get("/version")
        assert proxy.connections == 2


def test_a_proxy_resets_a_watch_in_the_middle(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        context = admin.ssl_context()
        watch = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=10, context=context)
        with contextlib.closing(watch):
            watch.request("GET", "/api/v1/namespaces?watch=true")
            answer = watch.getresponse()
            assert b'"ADDED"' in answer.readline()
            proxy.drop()
            with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
                answer.read()
            answer.close()
        assert Rest(admin).get("/version")


def test_a_stalled_proxy_holds_the_answer_back_until_it_heals(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        proxy.stall()
        with pytest.raises(TimeoutError):
            Rest(admin, timeout=0.5).get("/version")
        proxy.heal()
        assert Rest(admin).get("/version")


def test_a_refusal_carries_the_servers_answer(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Refused) as refusal:
        cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps/none")
    assert refusal.value.status == 404
    assert '"reason":"NotFound"' in refusal.value.body
