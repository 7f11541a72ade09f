"""Every setting that a chart makes is one that the program knows, with a value that it takes."""

from pathlib import Path
from typing import Any

import pytest
from charts.reference import NAMES, leaves, schema
from tests.charts.rendering import changed, everything, objects, one, pod_specs

from gpufleet.cli.commands import COMMANDS
from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import AgentSettings, ServerSettings, StoreSettings, load_settings

OURS = {
    "gpu-scheduler": {"scheduler": "scheduler", "webhook": "webhook", "agent": "agent"},
    "gpufleet": {"server": "serve"},
}
"""The containers that run gpufleet, and their command."""

EXAMPLES = [
    pytest.param(chart, changed({}, path, each["examples"][0]), id=f"{chart}-{'.'.join(path)}")
    for chart in NAMES
    for path, each in leaves(schema(chart))
    if path[0] in ("log", "schedulerName", "accounting", "corsOrigins")
    or path[-1]
    in ("port", "hold", "permit", "preempt", "period", "reader", "identify", "operators", "processes")
]


@pytest.mark.parametrize(
    ("chart", "values"),
    [*((chart, values) for chart in NAMES for values in ({}, everything(chart))), *EXAMPLES],
)
def test_the_program_takes_what_the_chart_sets(chart: str, values: dict[str, Any], tmp_path: Path) -> None:
    found = {}
    for _, spec in pod_specs(objects(chart, values)):
        for container in spec["containers"]:
            if container["name"] in OURS[chart] and "args" in container:
                assert container["args"] == [OURS[chart][container["name"]]]
                found[container["name"]] = _environment(container)
    assert found.keys() == OURS[chart].keys()
    assert set(OURS[chart].values()) <= COMMANDS.keys()
    for environment in found.values():
        load_settings({}, environment, _empty(tmp_path))


@pytest.mark.parametrize("pod_resources", [True, False])
@pytest.mark.parametrize("pod_logs", [True, False])
def test_the_agent_sees_of_the_host_what_it_reads_and_no_more(
    pod_resources: bool, pod_logs: bool, tmp_path: Path
) -> None:
    rendered = objects("gpu-scheduler", {"agent": {"podResources": pod_resources, "podLogs": pod_logs}})
    spec = one(rendered, "DaemonSet", "gpu-scheduler-agent")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    settings = load_settings({}, _environment(container), _empty(tmp_path))[AgentSettings]
    read = {settings.kubelet.parent if settings.kubelet else None, settings.pod_logs} - {None}
    assert len(read) == pod_resources + pod_logs
    host = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    assert set(host.values()) == {str(path) for path in read}
    for mount in container["volumeMounts"]:
        if mount["name"] in host:
            assert mount["readOnly"]
            assert mount["mountPath"] == host[mount["name"]]


def test_a_variable_that_nobody_knows_would_be_noticed(tmp_path: Path) -> None:
    values = {"env": [{"name": "GPUFLEET_STORE_POOLSIZE", "value": "5"}]}
    [container] = one(objects("gpufleet", values), "Deployment", "gpufleet")["spec"]["template"]["spec"][
        "containers"
    ]
    with pytest.raises(SettingsError, match="did you mean GPUFLEET_STORE_POOL_SIZE"):
        load_settings({}, _environment(container), _empty(tmp_path))


def test_the_file_in_the_config_map_is_read_as_it_was_given(tmp_path: Path) -> None:
    config = '[store]\npool_size = 5\n[clusters.east.kubernetes]\ncontext = "east"\n'
    rendered = objects("gpufleet", {"config": config})
    file = tmp_path / "gpufleet.toml"
    file.write_text(one(rendered, "ConfigMap", "gpufleet")["data"]["gpufleet.toml"])
    [container] = one(rendered, "Deployment", "gpufleet")["spec"]["template"]["spec"]["containers"]
    environment = _environment(container)
    path = environment.pop("GPUFLEET_CONFIG")
    mounted = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "config"]
    assert path == f"{mounted[0]}/gpufleet.toml"
    settings = load_settings({}, environment, file)
    assert settings[StoreSettings].pool_size == 5
    assert list(settings.clusters) == ["east"]
    assert settings[ServerSettings].host == "0.0.0.0"


def _environment(container: dict[str, Any]) -> dict[str, str]:
    """What the container sees; what comes from elsewhere stands as some text."""
    return {each["name"]: each.get("value", "given-elsewhere") for each in container["env"]}


def _empty(folder: Path) -> Path:
    file = folder / "empty.toml"
    file.touch()
    return file
