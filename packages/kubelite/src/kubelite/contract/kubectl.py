"""The real kubectl and its everyday commands."""

import asyncio
import json
import stat
from pathlib import Path

import yaml

from kubelite.contract.client import Api
from kubelite.contract.custom_resources import custom_object, installed_definition
from kubelite.contract.resources import GROUP, config_map, definition, pod

_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "nginx:1", ports: [{containerPort: 80}], env: [{name: A, value: "1"}]}
"""


class TestKubectl:
    """kubectl commands."""

    async def test_get_prints_tables_yaml_and_jsonpath(self, api: Api) -> None:
        await api.kubectl("create", "-f", "-", stdin=json.dumps(pod("a")))
        lines = (await api.kubectl("get", "pods")).splitlines()
        assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
        assert lines[1].split()[:4] == ["a", "0/1", "Pending", "0"]
        assert (await api.kubectl("get", "po", "-o", "wide")).splitlines()[0].split()[5:7] == ["IP", "NODE"]
        assert (
            yaml.safe_load(await api.kubectl("get", "pod/a", "-o", "yaml"))["spec"]["schedulerName"] == "none"
        )
        assert (
            await api.kubectl("get", "pod", "a", "-o", "jsonpath={.spec.containers[0].image}") == "busybox:1"
        )
        code, _, errors = await api.kubectl_result("get", "pod", "none")
        assert code == 1
        assert 'Error from server (NotFound): pods "none" not found' in errors

    async def test_apply_changes_only_what_changed(self, api: Api) -> None:
        assert await api.kubectl("apply", "-f", "-", stdin=_DEPLOYMENT) == "deployment.apps/web created\n"
        assert await api.kubectl("apply", "-f", "-", stdin=_DEPLOYMENT) == "deployment.apps/web unchanged\n"
        await api.kubectl(
            "patch",
            "deploy",
            "web",
            "-p",
            '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:1"}]}}}}',
        )
        changed = _DEPLOYMENT.replace('value: "1"', 'value: "2"').replace("nginx:1", "nginx:2")
        assert await api.kubectl("apply", "-f", "-", stdin=changed) == "deployment.apps/web configured\n"
        found = json.loads(await api.kubectl("get", "deploy", "web", "-o", "json"))["spec"]["template"][
            "spec"
        ]["containers"]
        assert {one["name"]: one["image"] for one in found} == {"web": "nginx:2", "side": "side:1"}
        web = next(one for one in found if one["name"] == "web")
        assert web["env"] == [{"name": "A", "value": "2"}]
        removed = changed.replace(', env: [{name: A, value: "2"}]', "")
        await api.kubectl("apply", "-f", "-", stdin=removed)
        assert "env" not in await api.kubectl(
            "get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers}"
        )

    async def test_apply_refuses_unknown_fields(self, api: Api) -> None:
        bad = _DEPLOYMENT.replace("replicas: 0", "replicas: 0\n  replcas: 1")
        code, _, errors = await api.kubectl_result("apply", "-f", "-", stdin=bad)
        assert code != 0
        assert 'unknown field "spec.replcas"' in errors

    async def test_server_side_apply_reports_conflicts(self, api: Api) -> None:
        text = json.dumps(config_map("a", {"k": "1"}))
        assert "serverside-applied" in await api.kubectl("apply", "--server-side", "-f", "-", stdin=text)
        await api.kubectl("patch", "cm", "a", "--type=merge", "-p", '{"data":{"k":"2"}}')
        code, _, errors = await api.kubectl_result("apply", "--server-side", "-f", "-", stdin=text)
        assert code != 0
        assert 'conflict with "kubectl-patch"' in errors
        await api.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
        assert await api.kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "1"

    async def test_server_side_apply_takes_over_a_client_side_applied_object(self, api: Api) -> None:
        await api.kubectl("apply", "-f", "-", stdin=_DEPLOYMENT)
        changed = _DEPLOYMENT.replace("nginx:1", "nginx:2")
        await api.kubectl("apply", "--server-side", "-f", "-", stdin=changed)
        image = await api.kubectl(
            "get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"
        )
        assert image == "nginx:2"

    async def test_diff_shows_what_would_change(self, api: Api) -> None:
        await api.kubectl("apply", "-f", "-", stdin=_DEPLOYMENT)
        code, out, _ = await api.kubectl_result(
            "diff", "-f", "-", stdin=_DEPLOYMENT.replace("nginx:1", "nginx:9")
        )
        assert code == 1
        assert "+        image: nginx:9" in out or "+      - image: nginx:9" in out

    async def test_get_watch_prints_changes_as_they_happen(self, api: Api) -> None:
        process = await api.kubectl_process("get", "pods", "-w", "--no-headers")
        assert process.stdout is not None
        try:
            await asyncio.sleep(0.5)
            (await api.post(api.path("pods"), pod("a"))).ok(201)
            async with asyncio.timeout(20):
                assert (await process.stdout.readline()).split()[:3] == [b"a", b"0/1", b"Pending"]
            (await api.patch(api.path("pods", "a", "status"), {"status": {"phase": "Running"}})).ok()
            async with asyncio.timeout(20):
                assert (await process.stdout.readline()).split()[:3] == [b"a", b"0/1", b"Running"]
        finally:
            process.terminate()
            await process.communicate()

    async def test_describe_shows_pods_nodes_and_deployments(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        about = {"kind": "Pod", "name": "a", "namespace": api.namespace}
        made = (await api.get(api.path("pods", "a"))).ok()
        event = {
            "metadata": {"name": "e"},
            "involvedObject": {**about, "uid": made["metadata"]["uid"]},
            "reason": "Looked",
            "message": "at it",
            "type": "Normal",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "count": 1,
        }
        (await api.post(api.path("events"), event)).ok(201)
        output = await api.kubectl("describe", "pod", "a")
        assert "busybox:1" in output
        assert "Looked" in output
        node = f"node-{api.namespace}"
        (await api.post("/api/v1/nodes", {"metadata": {"name": node}})).ok(201)
        assert node in await api.kubectl("describe", "node", node)
        await api.kubectl("cordon", node)
        assert "SchedulingDisabled" in await api.kubectl("get", "node", node)
        (await api.delete(f"/api/v1/nodes/{node}")).ok()
        await api.kubectl("apply", "-f", "-", stdin=_DEPLOYMENT)
        assert "RollingUpdate" in await api.kubectl("describe", "deploy", "web")
        assert "Active" in await api.kubectl("describe", "ns", api.namespace)

    async def test_edit_changes_by_script(self, api: Api, tmp_path: Path) -> None:
        await api.kubectl("create", "-f", "-", stdin=json.dumps(config_map("a", {"k": "before"})))
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nsed -i "s/before/after/" "$1"\n')
        editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
        await api.kubectl("edit", "cm", "a", env={"EDITOR": str(editor)})
        assert await api.kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "after"

    async def test_label_annotate_and_delete_by_label(self, api: Api) -> None:
        await api.kubectl("create", "-f", "-", stdin=json.dumps(config_map("a")))
        await api.kubectl("label", "cm", "a", "team=x")
        await api.kubectl("annotate", "cm", "a", "note=y")
        assert (await api.kubectl("get", "cm", "-l", "team=x", "-o", "name")) == "configmap/a\n"
        assert "deleted" in await api.kubectl("delete", "cm", "-l", "team=x")
        await api.until_gone(api.path("configmaps", "a"))

    async def test_wait_returns_on_conditions_and_deletion(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        waiting = asyncio.create_task(api.kubectl("wait", "pod/a", "--for=condition=Ready", "--timeout=30s"))
        await asyncio.sleep(0.3)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        (await api.patch(api.path("pods", "a", "status"), ready)).ok()
        assert "condition met" in await waiting
        waiting = asyncio.create_task(api.kubectl("wait", "pod/a", "--for=delete", "--timeout=30s"))
        await asyncio.sleep(0.3)
        await api.kubectl("delete", "pod", "a", "--wait=false")
        assert "condition met" in await waiting

    async def test_explain_shows_fields(self, api: Api) -> None:
        output = await api.kubectl("explain", "pod.spec.containers.env")
        assert "valueFrom" in output
        assert "FIELD: env" in output
        assert "replicas" in await api.kubectl("explain", "deployment.spec")
        code, _, errors = await api.kubectl_result("explain", "pod.spec.nothing")
        assert code != 0
        assert 'field "nothing" does not exist' in errors

    async def test_api_resources_lists_kinds_with_short_names(self, api: Api) -> None:
        lines = [line.split() for line in (await api.kubectl("api-resources", "--no-headers")).splitlines()]
        assert ["pods", "po", "v1", "true", "Pod"] in lines
        assert ["poddisruptionbudgets", "pdb", "policy/v1", "true", "PodDisruptionBudget"] in lines
        assert "apps/v1" in (await api.kubectl("api-versions")).splitlines()

    async def test_kubectl_handles_custom_resources(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            await api.kubectl("apply", "-f", "-", stdin=json.dumps(custom_object(kind, "a", count=2)))
            lines = (await api.kubectl("get", plural)).splitlines()
            assert lines[0].split() == ["NAME", "COUNT", "PHASE", "AGE"]
            assert lines[1].split()[:2] == ["a", "2"]
            assert "count" in await api.kubectl("explain", f"{plural}.spec")
            patch = ("--type=merge", "-p", '{"spec":{"count":3}}')
            await api.kubectl("patch", plural, "a", *patch)
            await api.kubectl(
                "patch",
                plural,
                "a",
                "--subresource=status",
                "--type=merge",
                "-p",
                '{"status":{"phase":"Bound"}}',
            )
            assert (
                await api.kubectl(
                    "get", f"{plural}.{GROUP}/a", "-o", "jsonpath={.spec.count}/{.status.phase}"
                )
            ) == "3/Bound"
            assert "configured" in await api.kubectl(
                "apply", "-f", "-", stdin=json.dumps(custom_object(kind, "a", count=4))
            )
            code, _, errors = await api.kubectl_result(
                "apply", "-f", "-", stdin=json.dumps(custom_object(kind, "a", count=99))
            )
            assert code != 0
            assert "spec.count" in errors
            await api.kubectl("delete", plural, "a")

    async def test_wait_returns_when_a_definition_is_established(self, api: Api) -> None:
        plural = "d" + api.namespace.replace("-", "")[-8:]
        name = f"{plural}.{GROUP}"
        await api.kubectl("apply", "-f", "-", stdin=json.dumps(definition(plural, plural.capitalize())))
        await api.kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=20s")
        await api.kubectl("delete", "crd", name)

    async def test_typed_commands_work(self, api: Api) -> None:
        assert (await api.kubectl("auth", "can-i", "create", "pods")).strip() == "yes"
        assert "created" in await api.kubectl(
            "create", "deployment", "typed", "--image=nginx:1", "--replicas=0"
        )
        assert "created" in await api.kubectl("create", "configmap", "typed", "--from-literal=k=v")
        assert await api.kubectl("get", "cm", "typed", "-o", "jsonpath={.data.k}") == "v"
        assert "created" in await api.kubectl("create", "secret", "generic", "typed", "--from-literal=k=v")
        assert "scaled" in await api.kubectl("scale", "deploy", "typed", "--replicas=0")
        assert "image updated" in await api.kubectl("set", "image", "deploy/typed", "nginx=nginx:3")
        await api.kubectl("create", "namespace", f"{api.namespace}-2")
        await api.kubectl("delete", "namespace", f"{api.namespace}-2", "--wait=false")
