"""Test the control plane that the other end-to-end tests rely on."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import Cluster, CommandFailed, ComponentFailed, Proxy, RequestFailed
from e2e.cluster.binaries import Binaries
from e2e.cluster.rest import Rest
from e2e.fakenodes import FakeNodes

_CONTAINER = {"name": "main", "image": "trainer"}


def test_kubectl_reaches_a_server_of_the_pinned_release(cluster: Cluster) -> None:
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


def test_a_token_authenticates_its_service_account(cluster: Cluster, namespace: str) -> None:
    account = cluster.service_account(namespace, "default")
    username = cluster.kubectl(
        "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", identity=account
    )
    assert username == f"system:serviceaccount:{namespace}:default"


def test_the_audit_log_shows_the_user_and_body_of_a_lease_write(cluster: Cluster, namespace: str) -> None:
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


def test_a_paused_server_times_out_and_resumes(cluster: Cluster) -> None:
    client = Rest(cluster.admin, timeout=0.5)
    with cluster.apiserver.paused(), pytest.raises(TimeoutError):
        client.get("/version")
    assert cluster.api.get("/version")["gitVersion"] == f"v{cluster.binaries.version}"


def test_a_restarted_server_keeps_its_objects(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "kept", namespace=namespace)
    before = cluster.apiserver.pid
    cluster.apiserver.restart()
    assert cluster.apiserver.pid != before
    assert "kept" in cluster.kubectl("get", "configmaps", namespace=namespace)


def test_a_killed_controller_manager_works_after_a_restart(cluster: Cluster) -> None:
    cluster.controller_manager.kill()
    assert not cluster.controller_manager.running
    cluster.controller_manager.start()
    cluster.create_namespace("after-the-kill")
    cluster.api.delete("/api/v1/namespaces/after-the-kill")


def test_a_proxy_is_cut_and_heals(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        api = Rest(admin, timeout=1)
        assert api.get("/version")
        proxy.cut()
        with pytest.raises(ConnectionRefusedError):
            api.get("/version")
        proxy.heal()
        assert api.get("/version")
        assert proxy.connections == 2


def test_a_proxy_resets_a_running_watch(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        context = admin.ssl_context()
        watch = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=10, context=context)
        with contextlib.closing(watch):
            watch.request("GET", "/api/v1/namespaces?watch=true")
            response = watch.getresponse()
            assert b'"ADDED"' in response.readline()
            proxy.drop()
            with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
                response.read()
            response.close()
        assert Rest(admin).get("/version")


def test_a_dropped_connection_is_reset_on_both_sides_and_dropped_only_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        upstream, _ = server.accept()
        with client, upstream:
            upstream.sendall(b"partial resp")
            assert client.recv(100) == b"partial resp"
            proxy.drop()
            proxy.drop()
            with pytest.raises(ConnectionResetError):
                client.recv(100)
            with pytest.raises(ConnectionResetError):
                upstream.recv(100)


def test_a_stalled_proxy_delays_the_response_until_it_heals(cluster: Cluster) -> None:
    with cluster.proxy() as (proxy, admin):
        proxy.stall()
        with pytest.raises(TimeoutError):
            Rest(admin, timeout=0.5).get("/version")
        proxy.heal()
        assert Rest(admin).get("/version")


def test_a_failed_request_has_the_response_of_the_server(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(RequestFailed) as error:
        cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps/none")
    assert error.value.status == 404
    assert '"reason":"NotFound"' in error.value.body


def test_the_scheduler_can_run_with_another_configuration(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    pod = {"metadata": {"name": "p"}, "spec": {"schedulerName": "special", "containers": [_CONTAINER]}}
    with cluster.scheduling({"profiles": [{"schedulerName": "special"}]}):
        cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        cluster.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s", namespace=namespace)
    cluster.kubectl("run", "usual", "--image=x", namespace=namespace)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/usual", "--timeout=60s", namespace=namespace)


def test_the_audit_log_shows_who_bound_a_pod(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("n1")
    since = cluster.audit_size()
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [_CONTAINER]}}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s", namespace=namespace)
    bindings = [each for each in cluster.audit(since) if each["objectRef"].get("subresource") == "binding"]
    assert [each["user"]["username"] for each in bindings] == ["system:kube-scheduler"]
    assert bindings[0]["requestObject"]["target"]["name"] == "n1"


def test_a_component_whose_port_is_taken_fails_with_its_log(control_plane: Binaries) -> None:
    cluster = Cluster(control_plane)
    try:
        taken = int(cluster.etcd.command[3].rpartition(":")[2])
        with (
            socket.create_server(("127.0.0.1", taken)),
            pytest.raises(ComponentFailed, match="already in use"),
        ):
            cluster.etcd.start()
    finally:
        cluster.stop()


def test_a_stopped_cluster_leaves_no_files_or_processes(control_plane: Binaries) -> None:
    cluster = Cluster(control_plane)
    cluster.etcd.start()
    pid = cluster.etcd.pid
    assert pid
    cluster.stop()
    assert not cluster.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_ORPHAN = """
import sys, time
from pathlib import Path
from e2e.cluster.component import Component
from e2e.cluster.guard import Guard
directory = Path(sys.argv[1])
component = Component("sleep", ["sleep", "600"], directory / "log", lambda: True, Guard(directory))
component.start()
component.pause()
print(component.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_test_run_leaves_no_files_or_processes(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    command = [sys.executable, "-c", _ORPHAN, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        component = int(run.stdout.readline())
        run.kill()
    Cluster.wait_for("end of the directory", lambda: not directory.exists())
    Cluster.wait_for("end of the component", lambda: not _alive(component))


def _alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
