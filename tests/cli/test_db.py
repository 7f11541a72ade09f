import asyncio
from pathlib import Path

import asyncpg
import pytest

from gpufleet.cli import main
from gpufleet.store.postgres.migrate import migrations


def test_check_fails_until_upgrade_was_run(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_postgres_url)
    assert main(["db", "check"]) == 1
    assert "missing 0001 readings" in capsys.readouterr().out
    assert main(["db", "upgrade"]) == 0
    assert "applied 0001 readings" in capsys.readouterr().out
    assert main(["db", "check"]) == 0
    assert capsys.readouterr().out == f"the database is up to date (step {migrations()[-1].number})\n"


def test_upgrade_creates_the_embedded_database(
    empty_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    data = empty_data / "new"
    assert main(["db", "check", "--data", str(data)]) == 1
    assert f"there is no database in {data} yet" in capsys.readouterr().out
    assert not data.exists()
    assert main(["db", "upgrade", "--data", str(data)]) == 0
    assert main(["db", "check", "--data", str(data)]) == 0


def test_a_database_that_does_not_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:geheim@127.0.0.1:1/none")
    assert main(["db", "check", "--set", "store.start_timeout=1s"]) == 1
    shown = capsys.readouterr().err
    assert "gpufleet db: the database does not answer" in shown
    assert "geheim" not in shown


def test_an_unknown_action_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["db", "drop"])
    assert stopped.value.code == 2
    assert "upgrade" in capsys.readouterr().err


NAMES = """
WITH c AS (INSERT INTO accounted_cluster (name, since, seen_at) VALUES ('prod', 0, 0) RETURNING id),
k AS (INSERT INTO kind_name (name) VALUES ('Job') RETURNING id),
n AS (INSERT INTO namespace_name (cluster, name) SELECT id, unnest(ARRAY['robotics', 'vision']) FROM c RETURNING *)
INSERT INTO workload (cluster, namespace, kind, name, uid, digest, source, labels, annotations)
SELECT n.cluster, n.id, k.id, 'train', uid, '', 'k8s', '{}', '{}' FROM n, k, unnest($1::text[]) AS uid
WHERE n.name = 'robotics' OR uid = 'forged'
"""


def test_workloads_with_rows_in_several_namespaces_are_listed(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def insert(*uids: str) -> None:
        connection = await asyncpg.connect(empty_postgres_url)
        await connection.execute("SET search_path TO gpufleet")
        await connection.execute(NAMES, list(uids))
        await connection.close()

    monkeypatch.setenv("DATABASE_URL", empty_postgres_url)
    assert main(["db", "upgrade"]) == 0
    assert main(["db", "suspicious-owners"]) == 0
    assert capsys.readouterr().out.endswith("no workload has rows in several namespaces\n")
    asyncio.run(insert("own", "forged"))
    assert main(["db", "suspicious-owners"]) == 1
    assert capsys.readouterr().out.startswith("prod forged Job train: in robotics, vision\n")
