"""gpufleet explain, as a user runs it, on the embedded API."""

import asyncio
from pathlib import Path

import pytest
from tests.scheduler.stage import open_server, open_stage

from gpufleet.cli import main


async def test_explain_distinguishes_pending_and_allocated_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_server() as server, open_stage(server) as stage:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        await stage.node("a", gpus=1)
        await stage.claim("one")
        served = await stage.pod("served", "one")
        await stage.schedule(served)
        await stage.pod("waits", "one")

        async def explain(*words: str) -> tuple[int, str]:
            capsys.readouterr()
            status = await asyncio.to_thread(main, ["explain", *words, "--kubeconfig", str(kubeconfig)])
            return status, capsys.readouterr().out

        status, text = await explain("pod", "served")
        assert (status, text.splitlines()[-1]) == (0, "pod default/served: allocated: a:0")
        status, text = await explain("pod", "waits")
        assert status == 1
        assert "0/1 nodes fit: 1 has no free GPU" in text
        assert "wait for pod default/served on a to end" in text
        status, text = await explain("claim", "one", "-o", "json")
        assert (status, '"waiting": true' in text) == (1, True)
        assert (await explain("pod", "missing"))[0] == 1


async def test_a_gang_that_does_not_fit_is_explained_with_how_many_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_server() as server, open_stage(server) as stage:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        await stage.node("a", gpus=2)
        await stage.group("g", 2)
        await stage.claim("member", 2, spec={"gangRef": "g"})
        for name in ("m0", "m1"):
            await stage.pod(name, "member", schedulingGates=[{"name": "gpu.scheduling/gang"}])
        capsys.readouterr()
        words = ["explain", "claim", "member", "--kubeconfig", str(kubeconfig)]
        assert await asyncio.to_thread(main, words) == 1
        assert "gang g: 1 of 2 members fit; next member: 0/1 nodes fit" in capsys.readouterr().out


async def test_the_estimate_follows_the_order_between_gpu_queues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_server() as server, open_stage(server) as stage:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        for name, spec in (("first", {}), ("owner", {"guaranteed": {"gpus": 2}})):
            await stage.client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            await stage.client.write_json(
                "POST",
                "/apis/gpu.scheduling/v1/gpuqueues",
                {
                    "apiVersion": "gpu.scheduling/v1",
                    "kind": "GpuQueue",
                    "metadata": {"name": name},
                    "spec": {"namespaces": [name], **spec},
                },
            )
            status = {"status": {"namespaces": [name]}}
            path = f"/apis/gpu.scheduling/v1/gpuqueues/{name}/status"
            await stage.client.write_json("PATCH", path, status, "application/merge-patch+json")
        await stage.node("a", gpus=2)
        await stage.claim("all", 2)
        await stage.schedule(await stage.pod("runs", "all"))
        for namespace in ("first", "owner"):
            await stage.claim("all", 2, namespace=namespace)
            await stage.pod("waits", "all", namespace=namespace)
        capsys.readouterr()
        words = ["explain", "pod", "waits", "--kubeconfig", str(kubeconfig), "-n"]
        assert await asyncio.to_thread(main, [*words, "owner"]) == 1
        assert "Position 1 in the queue" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*words, "first"]) == 1
        assert "Position 2 in the queue" in capsys.readouterr().out
