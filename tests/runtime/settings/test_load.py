import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import LogSettings, MetricsSettings, ServerSettings, load_settings
from gpufleet.runtime.settings.field import settings_of
from gpufleet.runtime.settings.groups import GROUPS
from gpufleet.runtime.settings.parse import amount, parse
from gpufleet.runtime.settings.reference import reference
from gpufleet.runtime.settings.removed import REMOVED, removal


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gpufleet.toml"
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, "[server]\nport = 1\n")
    environment = {"GPUFLEET_SERVER_PORT": "2", "PORT": "3"}
    assert load_settings({"server.port": "4"}, environment, path)[ServerSettings].port == 4
    assert load_settings({}, environment, path)[ServerSettings].port == 2
    assert load_settings({}, {"PORT": "3"}, path)[ServerSettings].port == 3
    assert load_settings({}, {}, path)[ServerSettings].port == 1
    assert load_settings({}, {}, file(tmp_path, ""))[ServerSettings].port == 8080


def test_the_variables_of_the_contract_work(tmp_path: Path) -> None:
    environment = {"PROMETHEUS_URL": "http://p:9090", "PORT": "9999", "LOG_LEVEL": "debug"}
    settings = load_settings({}, environment, file(tmp_path, ""))
    assert settings[MetricsSettings].url == "http://p:9090"
    assert settings[ServerSettings].port == 9999
    assert settings[LogSettings].level == "debug"


@pytest.mark.parametrize(
    ("flags", "environment", "text", "sentence"),
    [
        (
            {"server.port": "http"},
            {},
            "",
            "setting server.port: 'http' from flag --port is wrong; it takes a whole number from 0 to 65535",
        ),
        (
            {},
            {"PORT": "70000"},
            "",
            "setting server.port: '70000' from environment variable PORT is wrong; it takes a whole number from 0 to 65535",
        ),
        (
            {},
            {},
            "[log]\nlevel = 'loud'\n",
            "is wrong; it takes one of debug, info, warning, error",
        ),
        ({}, {}, "[server]\nprot = 1\n", "no setting server.prot; did you mean port?"),
        ({}, {}, "[sever]\nport = 1\n", "no group [sever]; did you mean server?"),
        ({}, {}, "[clusters.east.server]\n", "[clusters.east.server]: a cluster can set metrics, kubernetes"),
        (
            {},
            {},
            "[clusters.east.metrics]\ntimeout = 0\n",
            "setting metrics.timeout: 0 from file",
        ),
        ({}, {}, "server = 1\n", "server must be a table, written [server]"),
        ({}, {}, "[server\nport", "is not valid TOML: "),
        ({}, {"GPUFLEET_SERVER_PROT": "1"}, "", "no such setting; did you mean GPUFLEET_SERVER_PORT?"),
        (
            {},
            {"GPUFLEET_DATA": ""},
            "",
            "'' from environment variable GPUFLEET_DATA is wrong; it takes a path",
        ),
        ({"store.data": "~nobody-here/x"}, {}, "", "~USER only for an existing user"),
        ({"server.request_timeout": "soon"}, {}, "", "it takes a duration such as 15s, 5m, 2h or 30d"),
        (
            {"server.request_timeout": "0s"},
            {},
            "",
            "it takes a duration such as 15s, 5m, 2h or 30d of at least 100ms",
        ),
    ],
)
def test_a_wrong_value_names_the_setting_its_source_and_what_it_takes(
    tmp_path: Path, flags: dict[str, object], environment: dict[str, str], text: str, sentence: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(flags, environment, file(tmp_path, text))
    assert sentence in str(refusal.value)


def test_a_removed_setting_is_a_warning_and_not_an_error(tmp_path: Path) -> None:
    text = "[agent]\nheartbeat = '1m'\n[clusters.east.metrics]\ndetect = '1s'\ntimeout = '3s'\n"
    settings = load_settings({}, {"GPUFLEET_KUBERNETES_BURST": "nine"}, file(tmp_path, text))
    assert settings.clusters["east"][MetricsSettings].timeout == 3.0
    assert dict(settings.removed) == {
        "agent.heartbeat": f"file {tmp_path / 'gpufleet.toml'}",
        "metrics.detect": f"file {tmp_path / 'gpufleet.toml'}",
        "kubernetes.burst": "environment variable GPUFLEET_KUBERNETES_BURST",
    }
    assert removal("metrics.detect") == "setting metrics.detect is no longer needed; its value 5m is built in"


def test_no_setting_is_both_declared_and_removed() -> None:
    assert REMOVED.keys().isdisjoint(s.key for name, cls in GROUPS.items() for s in settings_of(name, cls))


def test_a_cluster_takes_from_its_own_tables_first(tmp_path: Path) -> None:
    text = "[metrics]\nurl = 'http://all'\ntimeout = '5s'\n[clusters.east.metrics]\nurl = 'http://east'\n[clusters.west]\n"
    settings = load_settings({}, {}, file(tmp_path, text))
    assert list(settings.clusters) == ["east", "west"]
    assert settings.clusters["east"][MetricsSettings].url == "http://east"
    assert settings.clusters["east"][MetricsSettings].timeout == 5.0
    assert settings.clusters["west"][MetricsSettings].url == "http://all"


def test_without_cluster_tables_there_is_one_cluster(tmp_path: Path) -> None:
    settings = load_settings({}, {}, file(tmp_path, ""))
    assert list(settings.clusters) == ["default"]
    assert settings.clusters["default"] is settings


def test_a_given_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings({}, {}, tmp_path / "missing.toml")


def test_a_wrong_secret_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings({}, {"DATABASE_URL": "postgresql://u:pass\x00word@h/d"}, file(tmp_path, ""))
    assert "pass" not in str(refusal.value)
    assert "store.url" in str(refusal.value)


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("15", 15.0), ("5m", 300.0), ("2h", 7200.0)])
def test_a_duration_takes_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    settings = load_settings({"server.request_timeout": text}, {}, file(tmp_path, ""))
    assert settings[ServerSettings].request_timeout == seconds


def test_the_settings_page_is_what_the_code_says() -> None:
    assert Path("docs/settings.md").read_text() == reference(), "run `make docs`"


@given(st.sampled_from([0.25, 1.0, 60.0, 3600.0, 86_400.0]), st.integers(0, 400))
def test_a_duration_is_shown_as_people_write_it_and_read_back_the_same(unit: float, count: int) -> None:
    (timeout,) = (s for s in settings_of("server", ServerSettings) if s.name == "request_timeout")
    shown = amount(timeout, unit * count)
    assert "e" not in shown
    assert not count or parse(timeout, shown) == unit * count
    assert amount(timeout, 30 * 86_400.0) == "30d"
    assert amount(timeout, 5400.0) == "90m"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up its capabilities")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_a_working_directory_that_cannot_be_searched_has_no_settings_file(tmp_path: Path) -> None:
    """The agent of the chart: root without capabilities in a directory of user 10001, mode 0750."""
    closed = tmp_path / "data"
    closed.mkdir(mode=0o750)
    os.chown(closed, 10001, 10001)
    without_capabilities = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    load = "from gpufleet.runtime.settings import load_settings; load_settings({}, {})"
    ran = subprocess.run(
        [*without_capabilities, sys.executable, "-c", load],
        cwd=closed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
