from collections.abc import Mapping

from tests.exporters.conftest import opened, until
from tests.waiting import wait_until

from gpufleet.model.reading import GpuProcess, GpuRef, RdmaPorts, StorageUse


async def test_processes_of_all_exporters_are_ordered_by_node_gpu_and_pid(everything: str) -> None:
    async with opened(everything, refresh=0.2) as source:  # what is fetched counts for so long
        await until(source, lambda readings: len(readings) >= 9)

        async def four() -> bool:  # one exporter's processes may come a scrape after another's GPUs
            return len((await source.processes()).rows) >= 4

        await wait_until(four)
        found = await source.processes()
        assert not found.errors
        assert [(row.gpu, row.pid) for row in found.rows] == [
            (GpuRef("127.0.0.1", 6), 4242),
            (GpuRef("agent-1", 0), 99),
            (GpuRef("agent-1", 0), 1234),
            (GpuRef("allsmi-1", 2), 7),
        ]
        python = found.rows[2]
        assert python == GpuProcess(
            gpu=GpuRef("agent-1", 0),
            pid=1234,
            name="python",
            user="alice",
            command="python train.py",
            gpu_memory_bytes=1073741824.0,
            cpu_percent=8.5,
            memory_percent=15.2,
            time=python.time,
        )
        idle = found.rows[1]
        assert (idle.gpu_memory_bytes, idle.cpu_percent) == (0.0, None)


async def test_storage_counts_each_claim_once_and_ports_are_counted_by_state(everything: str) -> None:
    async with opened(everything) as source:
        await until(source, lambda readings: len(readings) >= 9)
        assert await source.storage() == StorageUse(1500.0, 500.0, 1000.0)
        assert await source.rdma() == RdmaPorts(total=3, active=2, port_rate=5e10, total_rate=1e11)


async def test_without_volumes_each_file_system_counts_once(
    worlds: Mapping[str, str],
) -> None:
    async with opened(worlds["filesystems"]) as source:
        await until(source, lambda _: "node_filesystem_size_bytes" in source._names)
        assert await source.storage() == StorageUse(1200.0, 600.0, 600.0)
        assert await source.rdma() is None
