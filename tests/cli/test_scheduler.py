"""gpufleet scheduler as a process: it prints its address, leads, and stops on a signal."""

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
from tests.scheduler.stage import open_server


async def test_it_answers_leads_and_releases_its_leadership(tmp_path: Path) -> None:
    async with open_server() as server:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        words = ("-m", "gpufleet", "scheduler", "--port", "0", "--kubeconfig", str(kubeconfig))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(30):
                address = (await process.stdout.readline()).decode().split()[-1]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{address}/livez") as answer:
                    assert answer.status == 200
                async with asyncio.timeout(30):
                    while True:
                        async with session.get(f"{address}/readyz") as answer:
                            if answer.status == 200:
                                break
                        await asyncio.sleep(0.05)
                async with session.get(f"{address}/metrics") as answer:
                    assert "gpufleet_scheduler_leading 1.0" in await answer.text()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(15):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        entry = server.store.get("coordination.k8s.io/leases", "default", "gpufleet-scheduler")
        assert entry is not None
        assert not entry.object["spec"].get("holderIdentity"), "the next leader need not wait"
