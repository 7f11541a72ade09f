"""URLs in messages, settings that contain secrets, and files that are nested too deeply."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import MetricsUnavailable, SettingsError
from gpufleet.exporters.prometheus.client import PrometheusClient
from gpufleet.runtime.settings import MetricsSettings, StoreSettings
from gpufleet.runtime.settings.load import load_settings
from gpufleet.runtime.urls import without_credentials
from gpufleet.store.postgres.database import connect


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:hunter2@prom:9090/select/0?token=hunter2#hunter2", "http://prom:9090/select/0"),
        ("https://[::1]:9090", "https://[::1]:9090"),
        ("unix:///run/docker.sock", "unix:///run/docker.sock"),
        ("http://user:hun/ter2@prom", "the configured URL"),
        ("http://user:1/hunter2@prom", "the configured URL"),
        ("hunter2", "the configured URL"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@given(st.text(alphabet="abc:/?#[]@%. é", max_size=12))
def test_no_password_is_shown(noise: str) -> None:
    assert "hunter2" not in without_credentials(f"http://user:{noise}hunter2@host/path")


async def test_a_metric_source_that_is_down_is_named_without_its_password() -> None:
    async with PrometheusClient(MetricsSettings(url="http://user:hunter2@127.0.0.1:1")) as client:
        with pytest.raises(MetricsUnavailable) as raised:
            await client.instant("up", 0)
    assert "127.0.0.1:1" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ["ftp://user:hunter2@h", "http://user:hun/ter2@h", "http://u:1/hunter2@h"])
def test_an_invalid_metric_source_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        PrometheusClient(MetricsSettings(url=url))
    assert "ter2" not in str(raised.value)


@pytest.mark.parametrize("password", ["hun/ter2", "hun#ter2", "hun?ter2", "hun]ter2", "[hunter2"])
async def test_a_password_with_special_characters_is_refused_with_a_clean_sentence(password: str) -> None:
    with pytest.raises(SettingsError) as raised:
        await connect(f"postgresql://user:{password}@127.0.0.1:1/d", StoreSettings(), statement_seconds=1)
    assert "%2F" in str(raised.value)
    assert "hun" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_deep_settings_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gpufleet.toml"
    file.write_text("a = " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(SettingsError, match="nested too deeply"):
        load_settings({}, {}, file)
