"""Pods: defaults, immutable fields, binding, status, eviction and deletion."""

from kubelite.contract.client import STRATEGIC, Api
from kubelite.contract.resources import pod


def binding(name: str, node: str, **metadata: object) -> dict[str, object]:
    """Return a Binding of a pod to a node."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


class TestPods:
    """Behaviour that schedulers, webhooks and kubelets rely on."""

    async def test_a_pod_gets_its_defaults(self, api: Api) -> None:
        body = pod("a")
        body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
        made = (await api.post(api.path("pods"), body)).ok(201)
        spec = made["spec"]
        assert (spec["restartPolicy"], spec["dnsPolicy"], spec["terminationGracePeriodSeconds"]) == (
            "Always",
            "ClusterFirst",
            30,
        )
        assert spec["enableServiceLinks"] is True
        assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
        assert [one["key"] for one in spec["tolerations"]] == [
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
        ]
        container = spec["containers"][0]
        assert container["resources"] == {
            "limits": {"nvidia.com/gpu": "2"},
            "requests": {"nvidia.com/gpu": "2"},
        }
        assert (container["imagePullPolicy"], container["terminationMessagePath"]) == (
            "IfNotPresent",
            "/dev/termination-log",
        )
        assert made["status"]["phase"] == "Pending"
        assert made["status"]["qosClass"] == "BestEffort"

    async def test_a_pod_without_image_or_container_is_refused(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a", containers=[]))).refused(
            422, "spec.containers: Required value"
        )
        bad = pod("a", containers=[{"name": "main"}])
        (await api.post(api.path("pods"), bad)).refused(422, "spec.containers[0].image: Required value")
        gpus = {"requests": {"nvidia.com/gpu": 1}}
        bad = pod("a", containers=[{"name": "main", "image": "x", "resources": gpus}])
        (await api.post(api.path("pods"), bad)).refused(422, "spec.containers[0].resources.limits")

    async def test_env_is_immutable_after_creation(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        path = api.path("pods", "a")
        env = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "2"}]}]}}
        (await api.patch(path, env, STRATEGIC)).refused(422, "pod updates may not change fields other than")
        image = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
        assert (await api.patch(path, image, STRATEGIC)).ok()["spec"]["containers"][0]["image"] == "busybox:2"
        (await api.patch(path, {"spec": {"nodeName": "n"}})).refused(422)
        labels = {"metadata": {"labels": {"x": "y"}, "annotations": {"a": "b"}}}
        assert (await api.patch(path, labels)).ok()["metadata"]["labels"] == {"x": "y"}

    async def test_scheduling_gates_can_only_be_removed(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a", schedulingGates=[{"name": "example.com/g"}]))).ok(201)
        path = api.path("pods", "a")
        (await api.post(api.path("pods", "a", "binding"), binding("a", "n"))).refused(409, "schedulingGates")
        more = {"spec": {"schedulingGates": [{"name": "example.com/g"}, {"name": "example.com/h"}]}}
        (await api.patch(path, more)).refused(422, "only deletion is allowed")
        assert (
            "schedulingGates" not in (await api.patch(path, {"spec": {"schedulingGates": None}})).ok()["spec"]
        )

    async def test_a_pod_is_bound_only_once(self, api: Api) -> None:
        made = (await api.post(api.path("pods"), pod("a"))).ok(201)
        path = api.path("pods", "a", "binding")
        (await api.post(path, binding("a", "n1", uid="other"))).refused(409, "UID in precondition: other")
        annotations = {"gpu.scheduling/allocated": "n1:0,1"}
        response = (
            await api.post(path, binding("a", "n1", uid=made["metadata"]["uid"], annotations=annotations))
        ).ok(201)
        assert response["status"] == "Success"
        bound = (await api.get(api.path("pods", "a"))).ok()
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"] == annotations
        assert bound["metadata"]["generation"] == made["metadata"]["generation"]
        condition = bound["status"]["conditions"][0]
        assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
        (await api.post(path, binding("a", "n2"))).refused(409, 'pod a is already assigned to node "n1"')
        found = (await api.get(api.path("pods"), fieldSelector="spec.nodeName=n1")).ok()["items"]
        assert [item["metadata"]["name"] for item in found] == ["a"]
        (await api.delete(api.path("pods", "a"), gracePeriodSeconds="0")).ok()

    async def test_status_is_written_through_its_subresource(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        running = {"status": {"phase": "Running", "podIP": "10.1.2.3"}}
        assert (await api.patch(api.path("pods", "a"), running)).ok()["status"]["phase"] == "Pending"
        condition = {
            "type": "Ready",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        running["status"]["conditions"] = [condition]  # type: ignore[assignment]
        patched = (await api.patch(api.path("pods", "a", "status"), running, STRATEGIC)).ok()
        assert (patched["status"]["phase"], patched["status"]["podIP"]) == ("Running", "10.1.2.3")
        more = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
        patched = (await api.patch(api.path("pods", "a", "status"), more, STRATEGIC)).ok()
        assert sorted(one["type"] for one in patched["status"]["conditions"]) == ["Initialized", "Ready"]
        entry = next(
            one for one in patched["metadata"]["managedFields"] if one.get("subresource") == "status"
        )
        assert "f:status" in entry["fieldsV1"]

    async def test_an_unbound_pod_is_deleted_immediately(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        removed = (await api.delete(api.path("pods", "a"))).ok()
        assert removed["kind"] == "Pod"
        (await api.get(api.path("pods", "a"))).refused(404)

    async def test_a_pod_on_a_node_waits_for_its_kubelet(self, api: Api) -> None:
        made = (await api.post(api.path("pods"), pod("a"))).ok(201)
        (await api.post(api.path("pods", "a", "binding"), binding("a", "n1"))).ok(201)
        deleting = (await api.delete(api.path("pods", "a"))).ok()
        assert deleting["metadata"]["deletionGracePeriodSeconds"] == 30
        assert deleting["metadata"]["generation"] == made["metadata"]["generation"] + 1
        shorter = (await api.delete(api.path("pods", "a"), {"gracePeriodSeconds": 5})).ok()
        assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
        assert shorter["metadata"]["deletionTimestamp"] < deleting["metadata"]["deletionTimestamp"]
        longer = (await api.delete(api.path("pods", "a"), {"gracePeriodSeconds": 50})).ok()
        assert longer["metadata"]["deletionTimestamp"] == shorter["metadata"]["deletionTimestamp"]
        assert (await api.get(api.path("pods", "a"))).status == 200
        (await api.delete(api.path("pods", "a"), {"gracePeriodSeconds": 0})).ok()
        (await api.get(api.path("pods", "a"))).refused(404)

    async def test_a_finished_pod_is_deleted_immediately(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        (await api.post(api.path("pods", "a", "binding"), binding("a", "n1"))).ok(201)
        (await api.patch(api.path("pods", "a", "status"), {"status": {"phase": "Succeeded"}})).ok()
        (await api.delete(api.path("pods", "a"))).ok()
        (await api.get(api.path("pods", "a"))).refused(404)

    async def test_eviction_deletes_gracefully(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        (await api.post(api.path("pods", "a", "binding"), binding("a", "n1"))).ok(201)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
        assert (await api.post(api.path("pods", "a", "eviction"), body)).ok(201)["status"] == "Success"
        evicted = (await api.get(api.path("pods", "a"))).ok()
        assert evicted["metadata"]["deletionTimestamp"]
        conditions = {each["type"]: each for each in evicted["status"]["conditions"]}
        assert conditions["DisruptionTarget"]["status"] == "True"
        assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
        (await api.delete(api.path("pods", "a"), {"gracePeriodSeconds": 0})).ok()

    async def test_a_priority_class_gives_a_pod_its_priority(self, api: Api) -> None:
        name = f"{api.namespace}-high"
        classes = api.path("priorityclasses", version="scheduling.k8s.io/v1", cluster=True)
        (await api.post(classes, {"metadata": {"name": name}, "value": 1234})).ok(201)
        made = (await api.post(api.path("pods"), pod("a", priorityClassName=name))).ok(201)
        assert made["spec"]["priority"] == 1234
        (await api.post(api.path("pods"), pod("b", priorityClassName="not-there"))).refused(
            403, "no PriorityClass with name not-there was found"
        )
        (await api.delete(f"{classes}/{name}")).ok()
