"""Every setting that a chart passes exists and accepts its value."""

from pathlib import Path
from typing import Any

import pytest
from charts.reference import NAMES, leaves, schema
from tests.charts.rendering import changed, everything, objects, one, pod_specs

from gpufleet.cli.commands import COMMANDS
from gpufleet.errors import SettingsError
from gpufleet.kubernetes.resource_claims import AGENT_DRIVER
from gpufleet.runtime.settings import AgentSettings, ServerSettings, StoreSettings, load_settings

OURS = {
    "gpu-scheduler": {"scheduler": "scheduler", "webhook": "webhook", "agent": "agent"},
    "gpufleet": {"server": "serve"},
}
"""Containers that run gpufleet, with their command."""

EXAMPLES = [
    pytest.param(chart, changed({}, path, each["examples"][0]), id=f"{chart}-{'.'.join(path)}")
    for chart in NAMES
    for path, each in leaves(schema(chart))
    if path[0] in ("log", "schedulerName", "accounting", "corsOrigins")
    or path[-1] in ("operatorGroups", "viewerGroups", "groupNamespaces")
    or path[-1] in ("port", "hold", "preempt", "period", "reader", "identify", "operators", "processes")
]


@pytest.mark.parametrize(
    ("chart", "values"),
    [*((chart, values) for chart in NAMES for values in ({}, everything(chart))), *EXAMPLES],
)
def test_gpufleet_accepts_the_settings_of_the_chart(
    chart: str, values: dict[str, Any], tmp_path: Path
) -> None:
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
def test_the_agent_mounts_only_the_host_paths_that_it_reads(
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


def test_the_dra_driver_has_its_sockets_where_the_kubelet_looks(tmp_path: Path) -> None:
    rendered = objects("gpu-scheduler", {"agent": {"dra": True}})
    spec = one(rendered, "DaemonSet", "gpu-scheduler-agent")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    settings = load_settings({}, _environment(container), _empty(tmp_path))[AgentSettings]
    assert settings.dra
    host = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    mounted = {
        each["mountPath"]: host[each["name"]] for each in container["volumeMounts"] if each["name"] in host
    }
    for folder in ("plugins", "plugins_registry"):
        path = str(settings.kubelet_root / folder)
        assert mounted[path] == path
    [selector] = one(rendered, "DeviceClass", AGENT_DRIVER)["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{AGENT_DRIVER}"'
    plain = objects("gpu-scheduler")
    assert not any(each["kind"] == "DeviceClass" for each in plain)
    rules = one(plain, "ClusterRole", "gpu-scheduler-agent")["rules"]
    assert [rule["verbs"] for rule in rules if "resourceslices" in rule["resources"]] == [["list"]]


def test_an_unknown_variable_is_refused(tmp_path: Path) -> None:
    values = {"env": [{"name": "GPUFLEET_STORE_POOLSIZE", "value": "5"}]}
    [container] = one(objects("gpufleet", values), "Deployment", "gpufleet")["spec"]["template"]["spec"][
        "containers"
    ]
    with pytest.raises(SettingsError, match="did you mean GPUFLEET_STORE_POOL_SIZE"):
        load_settings({}, _environment(container), _empty(tmp_path))


def test_the_config_map_passes_the_configuration_file_unchanged(tmp_path: Path) -> None:
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
    """Return the environment variables. Those from Secrets and fields get a placeholder."""
    return {each["name"]: each.get("value", "given-elsewhere") for each in container["env"]}


def _empty(folder: Path) -> Path:
    file = folder / "empty.toml"
    file.touch()
    return file
