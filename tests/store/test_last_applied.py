"""What earlier versions stored of the annotations of pods: the manifest of kubectl apply is removed."""

import msgspec
from tests.store.test_periods import SEEN

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes.annotations import LAST_APPLIED
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store
from gpufleet.store.postgres.migrate import migrations

STORED = {LAST_APPLIED: '{"env":"hunter2"}', "team": "nlp"}
NAME = """
WITH n AS (INSERT INTO namespace_name (cluster, name) SELECT id, 'ml' FROM accounted_cluster RETURNING cluster, id),
k AS (INSERT INTO kind_name (name) VALUES ('Pod') RETURNING id)
INSERT INTO workload (cluster, namespace, kind, name, uid, digest, source, labels, annotations)
SELECT n.cluster, n.id, k.id, 'p', 'p', '', 'k8s', '{}', $1::text::jsonb FROM n, k
"""


async def test_stored_manifests_are_removed(empty_postgres_url: str) -> None:
    fleet = Fleet("prod", clock=lambda: 2000.0)
    for name in ("p", "q"):
        fleet.put_pod(
            FleetPod(
                uid=name,
                name=name,
                node="a",
                gpus=1,
                phase=Status.RUNNING,
                annotations=STORED if name == "p" else {"team": "nlp"},
            )
        )
        fleet.drop_pod(name)
    ended = list(fleet.ended().values())
    step = next(step for step in migrations() if step.number == 13)
    async with open_store(StoreSettings(url=empty_postgres_url)) as store:
        await store.accounted.open("prod", 0.0)
        await store.allocation_periods.save("prod", [msgspec.structs.replace(SEEN, annotations=STORED)])
        await store.ended.save("prod", ended)
        await store.database.execute(NAME, msgspec.json.encode(STORED).decode())
        for _ in range(2):  # a second time changes nothing
            await store.database.execute(step.sql)
        (period,) = await store.allocation_periods.overlapping("prod", 0.0, 10_000.0)
        records = await store.ended.newest("prod", 9)
        (row,) = await store.database.fetch("SELECT annotations FROM workload")
    assert period.annotations == {"team": "nlp"}
    assert msgspec.json.decode(row["annotations"]) == {"team": "nlp"}
    assert {each.workload.uid for each in records} == {"p", "q"}
    for record in records:
        assert record.workload.annotations == {"team": "nlp"}
        pods = (*record.workload.pods, *record.workload.counted)
        assert [pod.annotations for pod in pods] == [{"team": "nlp"}] * 2
