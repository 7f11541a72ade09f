from pathlib import Path

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
    assert main(["db", "check", "--store-start-timeout", "1s"]) == 1
    shown = capsys.readouterr().err
    assert "gpufleet db: the database does not answer" in shown
    assert "geheim" not in shown


def test_an_unknown_action_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["db", "drop"])
    assert stopped.value.code == 2
    assert "upgrade" in capsys.readouterr().err
