"""Test that pods on fake nodes behave as on real ones, with the real scheduler and controllers."""

import json
from typing import Any

from e2e.cluster import Cluster
from e2e.fakenodes import EXIT_CODE, RUNS_FOR, STARTS_AFTER, FakeNodes

_GPUS = {"nvidia.com/gpu": "8"}


def pod(name: str, *, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "trainer", **spec.pop("container", {})}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    metadata = {"name": name, "annotations": spec.pop("annotations", {}), "labels": spec.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def create(cluster: Cluster, namespace: str, *objects: dict[str, Any]) -> None:
    manifest = "\n---\n".join(json.dumps(each) for each in objects)
    cluster.kubectl("apply", "-f", "-", stdin=manifest, namespace=namespace)


def status(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return found


def wait_for_phase(cluster: Cluster, namespace: str, name: str, phase: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        found = status(cluster, namespace, name)
        return found if found["phase"] == phase else None

    found: dict[str, Any] = cluster.wait_for(f"{phase} pod {name}", reached)
    return found


def test_the_pods_of_a_deployment_are_scheduled_and_run(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("rack-1", "rack-2", "rack-3", capacity=_GPUS)
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=6", namespace=namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s", namespace=namespace)
    pods = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert {each["status"]["phase"] for each in pods} == {"Running"}
    assert {each["spec"]["nodeName"] for each in pods} <= {"rack-1", "rack-2", "rack-3"}
    assert len({each["status"]["podIP"] for each in pods}) == 6


def test_the_pods_of_a_deleted_deployment_are_deleted(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=3", namespace=namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s", namespace=namespace)
    cluster.kubectl("delete", "deployment", "web", namespace=namespace)
    cluster.wait_for(
        "end of the pods", lambda: not cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    )


def test_a_job_completes_after_its_annotated_time(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    manifest = pod("-", restartPolicy="Never")
    template = {"metadata": {"annotations": {RUNS_FOR: "0.5"}}, "spec": manifest["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"completions": 3, "parallelism": 3, "template": template},
    }
    create(cluster, namespace, job)
    cluster.kubectl("wait", "--for=condition=complete", "job/train", "--timeout=60s", namespace=namespace)
    assert cluster.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/train")["status"]["succeeded"] == 3


def test_a_pod_fails_with_its_annotated_exit_code(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    create(cluster, namespace, pod("p", restartPolicy="Never", annotations={RUNS_FOR: "0.1", EXIT_CODE: "3"}))
    ended = wait_for_phase(cluster, namespace, "p", "Failed")
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_finish_ends_a_pod_with_an_exit_code(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("n1")
    create(cluster, namespace, pod("good", restartPolicy="Never"), pod("bad", restartPolicy="Never"))
    fake_nodes.finish(namespace, "good")
    fake_nodes.finish(namespace, "bad", exit_code=137)
    wait_for_phase(cluster, namespace, "good", "Succeeded")
    wait_for_phase(cluster, namespace, "bad", "Failed")


def test_a_failed_pod_with_on_failure_restarts(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    create(cluster, namespace, pod("p", restartPolicy="OnFailure"))
    fake_nodes.finish(namespace, "p", exit_code=1)

    def restarts() -> int:
        statuses = status(cluster, namespace, "p").get("containerStatuses", [])
        return sum(each["restartCount"] for each in statuses)

    cluster.wait_for("restart", lambda: restarts() == 1)
    assert status(cluster, namespace, "p")["phase"] == "Running"


def test_the_environment_is_resolved_from_pod_resources_and_config_maps(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1", capacity=_GPUS)
    cluster.kubectl("create", "configmap", "settings", "--from-literal=mode=fast", namespace=namespace)
    cluster.kubectl("create", "secret", "generic", "keys", "--from-literal=token=t0p", namespace=namespace)
    env: list[dict[str, Any]] = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "IDS",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpu.scheduling/ids']"}},
        },
        {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['none']"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "TEXT", "value": "$(NAME) on $(NODE), $(UNKNOWN), $$(NAME)"},
    ]
    container = {"env": env, "resources": {"limits": {"cpu": "1500m"}}}
    create(cluster, namespace, pod("p", container=container, annotations={"gpu.scheduling/ids": "4,5"}))
    seen = fake_nodes.environment(namespace, "p")
    wait_for_phase(cluster, namespace, "p", "Running")
    assert seen == {
        "NAME": "p",
        "NODE": "n1",
        "IP": status(cluster, namespace, "p")["podIP"],
        "IDS": "4,5",
        "NONE": "",
        "CPUS": "2",
        "MODE": "fast",
        "TOKEN": "t0p",
        "TEXT": "p on n1, $(UNKNOWN), $(NAME)",
    }


def test_a_container_waits_for_its_config_map(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    create(
        cluster,
        namespace,
        pod("p", container={"envFrom": [{"configMapRef": {"name": "late"}, "prefix": "L_"}]}),
    )

    def reason() -> str | None:
        statuses = status(cluster, namespace, "p").get("containerStatuses", [{}])
        found: str | None = statuses[0].get("state", {}).get("waiting", {}).get("reason")
        return found

    cluster.wait_for("the error", lambda: reason() == "CreateContainerConfigError")
    cluster.kubectl("create", "configmap", "late", "--from-literal=A=1", namespace=namespace)
    assert fake_nodes.environment(namespace, "p") == {"L_A": "1"}


def test_init_containers_run_first_with_their_own_environment(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    init = {"name": "prepare", "image": "prepare", "env": [{"name": "STEP", "value": "0"}]}
    sidecar = {"name": "logs", "image": "logs", "restartPolicy": "Always"}
    create(cluster, namespace, pod("p", initContainers=[init, sidecar], annotations={STARTS_AFTER: "0.5"}))

    def initializing() -> bool:
        waiting = status(cluster, namespace, "p").get("initContainerStatuses", [])
        return bool(waiting) and "waiting" in waiting[0]["state"]

    cluster.wait_for("init containers", initializing)
    running = wait_for_phase(cluster, namespace, "p", "Running")
    states = {each["name"]: each["state"] for each in running["initContainerStatuses"]}
    assert states["prepare"]["terminated"]["exitCode"] == 0
    assert "running" in states["logs"]
    assert fake_nodes.environment(namespace, "p", "prepare") == {"STEP": "0"}


def test_a_node_rejects_pods_beyond_its_gpus(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("n1", capacity=_GPUS)
    create(cluster, namespace, pod("first", gpus=6, nodeName="n1"))
    wait_for_phase(cluster, namespace, "first", "Running")
    create(cluster, namespace, pod("second", gpus=3, nodeName="n1"))
    assert wait_for_phase(cluster, namespace, "second", "Failed")["reason"] == "OutOfnvidia.com/gpu"


def test_a_reconnected_node_runs_its_pods(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("offline", "online")
    fake_nodes.disconnect("offline")
    create(cluster, namespace, pod("on-offline", nodeName="offline"), pod("on-online", nodeName="online"))
    wait_for_phase(cluster, namespace, "on-online", "Running")
    assert status(cluster, namespace, "on-offline")["phase"] == "Pending"
    fake_nodes.reconnect("offline")
    wait_for_phase(cluster, namespace, "on-offline", "Running")


def test_a_node_can_become_not_ready(cluster: Cluster, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("n1")
    fake_nodes.set_ready("n1", False)
    assert "NotReady" in cluster.kubectl("get", "node", "n1")
    fake_nodes.set_ready("n1", True)
    assert "NotReady" not in cluster.kubectl("get", "node", "n1")


def test_a_node_without_heartbeats_becomes_unknown(cluster: Cluster) -> None:
    def ready(name: str) -> str:
        conditions = cluster.api.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
        found: str = next(each["status"] for each in conditions if each["type"] == "Ready")
        return found

    with FakeNodes(cluster.admin, heartbeat_s=1) as nodes, cluster.node_lifecycle_controllers():
        nodes.add("online", "offline")
        nodes.disconnect("offline")
        cluster.wait_for("a node in state Unknown", lambda: ready("offline") == "Unknown")
        assert ready("online") == "True"


def test_pods_continue_after_a_restart_of_the_server(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("n1")
    create(cluster, namespace, pod("p", restartPolicy="Never"))
    wait_for_phase(cluster, namespace, "p", "Running")
    cluster.apiserver.kill()
    fake_nodes.finish(namespace, "p")
    cluster.apiserver.start()
    wait_for_phase(cluster, namespace, "p", "Succeeded")


def test_a_thousand_nodes_are_created_and_removed(cluster: Cluster, fake_nodes: FakeNodes) -> None:
    names = fake_nodes.add(*(f"many-{number:04}" for number in range(1000)), capacity=_GPUS)
    listed = cluster.api.get("/api/v1/nodes")["items"]
    assert [each["metadata"]["name"] for each in listed] == names
    fake_nodes.remove(*names)
    assert not cluster.api.get("/api/v1/nodes")["items"]
