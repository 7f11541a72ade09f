"""The rendered objects are secure by default, consistent, and follow the contract."""

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from charts.reference import CHARTS, NAMES
from tests.charts.rendering import Object, everything, helm, objects, one, pod_specs, refusal

import gpufleet
from gpufleet.exporters.scraping.endpoints import LABELS
from gpufleet.kubernetes import extended_resources
from gpufleet.kubernetes.access_review import RESOURCE
from gpufleet.kubernetes.crds import GROUP
from gpufleet.scheduler.extender.certificates import SERVER_NAME
from gpufleet.scheduler.scheduler import Waits
from gpufleet.webhook.configuration import configurations, policies

BOTH = [(chart, values) for chart in NAMES for values in ({}, everything(chart))]


@pytest.mark.parametrize("chart", NAMES)
def test_the_app_version_is_the_version_of_the_package(chart: str) -> None:
    assert yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())["appVersion"] == gpufleet.__version__


def test_setting_the_scheduler_tag_changes_only_the_scheduler() -> None:
    before, after = (
        objects("gpu-scheduler"),
        objects("gpu-scheduler", {"scheduler": {"image": {"tag": "v0.2.0"}}}),
    )
    differing = {
        f"{old['kind']} {old['metadata']['name']}"
        for old, new in zip(before, after, strict=True)
        if old != new
    }
    assert differing == {"Deployment gpu-scheduler-scheduler", "Pod gpu-scheduler-test"}
    image = _container(one(after, "Deployment", "gpu-scheduler-scheduler"))["image"]
    assert image == "gpufleet-scheduler:v0.2.0"


def test_a_digest_is_used_instead_of_the_tag() -> None:
    digest, other, third = (f"sha256:{letter * 64}" for letter in "abc")
    for chart, values, images in (
        (
            "gpufleet",
            {"image": {"tag": "v9", "digest": digest}, "database": {"bundled": {"image": {"digest": other}}}},
            {f"gpufleet-server@{digest}", f"postgres@{other}"},
        ),
        (
            "gpu-scheduler",
            {
                "image": {"digest": digest},
                "kubeScheduler": {"image": {"digest": other}},
                "agent": {"image": {"repository": "mirror/agent", "digest": third}},
                "webhook": {"image": {"repository": "mirror/webhook"}},
            },
            {
                f"gpufleet-scheduler@{digest}",
                f"registry.k8s.io/kube-scheduler@{other}",
                f"mirror/agent@{third}",
                f"mirror/webhook:v{gpufleet.__version__}",
            },
        ),
        (
            "gpu-scheduler",
            {
                "image": {"digest": digest},
                "scheduler": {"image": {"digest": other}},
                "webhook": {"image": {"tag": "v9"}},
                "kubeScheduler": {"enabled": False},
            },
            {
                f"gpufleet-scheduler@{other}",
                f"gpufleet-scheduler@{digest}",
                "gpufleet-scheduler:v9",
                f"gpufleet-agent:v{gpufleet.__version__}",
            },
        ),
    ):
        rendered = objects(chart, values)
        found = {each["image"] for _, spec in pod_specs(rendered) for each in spec["containers"]}
        assert found == images
    assert "image.digest" in refusal("gpufleet", {"image": {"digest": "latest"}})


@pytest.mark.parametrize(("chart", "values"), BOTH)
def test_every_container_is_locked_down(chart: str, values: dict[str, Any]) -> None:
    for name, spec in pod_specs(objects(chart, values)):
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        root = name.startswith("DaemonSet")  # the kubelet's socket and the pod logs belong to root
        assert spec["securityContext"].get("runAsNonRoot", False) is not root, name
        assert not spec.get("hostNetwork"), name
        assert not spec.get("hostPID"), name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert "privileged" not in security, name
            assert {"requests", "limits"} <= container["resources"].keys(), name


@pytest.mark.parametrize(("chart", "values"), BOTH)
def test_every_long_running_container_has_probes(chart: str, values: dict[str, Any]) -> None:
    for name, spec in pod_specs(objects(chart, values)):
        if not name.startswith("Pod "):
            probes = {"startupProbe", "livenessProbe", "readinessProbe"}
            assert probes <= spec["containers"][0].keys(), name


@pytest.mark.parametrize(("chart", "values"), BOTH)
def test_service_variables_cannot_be_mistaken_for_settings(chart: str, values: dict[str, Any]) -> None:
    # A Service gpufleet-server would set GPUFLEET_SERVER_PORT=tcp://10.0.0.1:80.
    for name, spec in pod_specs(objects(chart, values)):
        assert spec["enableServiceLinks"] is False, name


@pytest.mark.parametrize(
    ("values", "privileged", "host_pids"),
    [
        ({"kernelLog": True}, True, False),
        ({"hostDevices": True}, True, False),
        ({"identify": True}, False, True),
        ({"runtimeClassName": "nvidia"}, False, False),
    ],
)
def test_the_agent_is_privileged_only_if_an_option_needs_it(
    values: dict[str, Any], privileged: bool, host_pids: bool
) -> None:
    agent = one(objects("gpu-scheduler", {"agent": values}), "DaemonSet", "gpu-scheduler-agent")
    spec = agent["spec"]["template"]["spec"]
    assert spec["containers"][0]["securityContext"].get("privileged", False) is privileged
    assert spec.get("hostPID", False) is host_pids
    assert spec.get("runtimeClassName", "") == values.get("runtimeClassName", "")


def test_the_amd_library_and_bindings_come_from_the_node() -> None:
    values = {"agent": {"reader": "amdsmi", "hostDevices": True, "driverLibraries": "/opt/rocm"}}
    spec = one(objects("gpu-scheduler", values), "DaemonSet", "gpu-scheduler-agent")["spec"]["template"][
        "spec"
    ]
    [container] = spec["containers"]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    [mounted] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "driver"]
    assert environment["ROCM_PATH"] == mounted
    assert environment["PYTHONPATH"] == f"{mounted}/share/amd_smi"
    assert environment["LD_LIBRARY_PATH"] == f"{mounted}/lib"


@pytest.mark.parametrize(("chart", "values"), BOTH)
def test_selected_pods_and_mounted_volumes_exist(chart: str, values: dict[str, Any]) -> None:
    rendered = objects(chart, values)
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        if "template" in each["spec"]
        else each["metadata"]["labels"]
        for each in rendered
        if each["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "Pod")
    ]
    for each in rendered:
        for selector in _selectors(each):
            assert any(selector.items() <= labels.items() for labels in pods), (each["kind"], selector)
    for name, spec in pod_specs(rendered):
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | (
            {"data"} if name.startswith("StatefulSet") else set()
        )
        for container in spec["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= volumes, name
            assert set(volumes) <= mounted, name
        account = spec.get("serviceAccountName")
        assert not account or one(rendered, "ServiceAccount", account), name


def test_every_repair_job_has_a_service_account_of_its_own_without_rights() -> None:
    values = {
        "repair": {
            "ownJobs": ["prove", "reset", "reload-driver", "reboot"],
            "jobs": {"vendor": {"kind": "Job"}},
        }
    }
    rendered = objects("gpu-scheduler", values)
    templates = one(rendered, "ConfigMap", "gpu-scheduler-repair-jobs")["data"]
    accounts = {
        name: yaml.safe_load(text)
        .get("spec", {})
        .get("template", {})
        .get("spec", {})
        .get("serviceAccountName")
        for name, text in templates.items()
    }
    assert accounts == {
        "prove.yaml": "gpu-scheduler-repair-prove",
        "reset.yaml": "gpu-scheduler-repair-reset",
        "reload-driver.yaml": "gpu-scheduler-repair-reload-driver",
        "reboot.yaml": "gpu-scheduler-repair-reboot",
        "vendor.yaml": None,
    }
    bound = {
        subject["name"]
        for each in rendered
        if each["kind"].endswith("RoleBinding")
        for subject in each["subjects"]
    }
    for account in (*filter(None, accounts.values()), "gpu-scheduler-repair-vendor"):
        assert one(rendered, "ServiceAccount", account)["automountServiceAccountToken"] is False
        assert account not in bound


def test_releases_in_two_namespaces_share_no_cluster_scoped_name() -> None:
    for chart in NAMES:
        names = [
            {
                (each["kind"], each["metadata"]["name"])
                for each in objects(chart, everything(chart), namespace)
                # A DRA driver exists once in a cluster: a second release with one must be refused.
                if "namespace" not in each["metadata"] and each["kind"] != "DeviceClass"
            }
            for namespace in ("default", "other")
        ]
        assert names[0]
        assert not names[0] & names[1]


def test_kube_scheduler_is_configured_for_the_extender_protocol() -> None:
    rendered = objects("gpu-scheduler", namespace="gpus")
    text = one(rendered, "ConfigMap", "gpu-scheduler-kube-scheduler")["data"]["config.yaml"]
    configuration = yaml.safe_load(text)
    [extender, never_called] = configuration["extenders"]
    assert not [key for key in never_called if key.endswith("Verb")]
    assert never_called["managedResources"] == [
        {"name": name, "ignoredByScheduler": True} for name in extended_resources.NAMES
    ]
    service = one(rendered, "Service", "gpu-scheduler-scheduler")
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert extender["urlPrefix"] == f"https://gpu-scheduler-scheduler.gpus.svc:{ports['extender']}"
    assert [extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "bind", "preempt")] == [
        "filter",
        "prioritize",
        "bind",
        "preempt",
    ]
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert configuration["percentageOfNodesToScore"] == 100
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == ["gpu-scheduler"]
    assert configuration["leaderElection"]["resourceName"] != "kube-scheduler"
    assert _seconds(extender["httpTimeout"]) > Waits().permit  # the bind of a gang member waits that long


def test_kube_scheduler_and_the_extender_share_a_certificate() -> None:
    rendered = objects("gpu-scheduler")
    text = one(rendered, "ConfigMap", "gpu-scheduler-kube-scheduler")["data"]["config.yaml"]
    extender = yaml.safe_load(text)["extenders"][0]
    tls = extender["tlsConfig"]
    assert extender["enableHTTPS"]
    assert tls.pop("serverName") == SERVER_NAME
    spec = one(rendered, "Deployment", "gpu-scheduler-kube-scheduler")["spec"]["template"]["spec"]
    [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "extender"]
    [secret] = [each["secret"] for each in spec["volumes"] if each["name"] == "extender"]
    mounted = {f"{mount['mountPath']}/{each['path']}" for each in secret["items"]}
    assert mounted == set(tls.values()), "and not the key of the CA"
    settings = _variables(one(rendered, "Deployment", "gpu-scheduler-scheduler"))
    assert settings["GPUFLEET_SCHEDULER_TLS_SECRET"] == secret["secretName"]
    rules = one(rendered, "Role", "gpu-scheduler-scheduler")["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [
        [secret["secretName"]],
        [settings["GPUFLEET_SCHEDULER_KUBE_SCHEDULER"]],
    ]


def test_without_kube_scheduler_nobody_may_call_the_extender() -> None:
    rendered = objects("gpu-scheduler", {"kubeScheduler": {"enabled": False}})
    [port] = _container(one(rendered, "Deployment", "gpu-scheduler-scheduler"))["ports"]
    assert port["name"] == "http"
    rules = one(rendered, "Role", "gpu-scheduler-scheduler")["rules"]
    assert [rule["resources"] for rule in rules] == [["leases"]]
    [rule] = one(rendered, "NetworkPolicy", "gpu-scheduler-scheduler")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "http"}]


def test_the_webhook_configurations_are_those_of_the_program() -> None:
    rendered = objects("gpu-scheduler")
    service = {"name": "gpu-scheduler-webhook", "namespace": "default", "port": 443}
    for expected in configurations({"service": service}, name="gpu-scheduler-webhook"):
        actual = one(rendered, expected["kind"], expected["metadata"]["name"])
        assert actual["webhooks"] == expected["webhooks"]


@pytest.mark.parametrize("selector", [None, {"matchLabels": {"gpus": "yes"}}])
def test_the_admission_policies_are_those_of_the_program(selector: dict[str, Any] | None) -> None:
    rendered = objects("gpu-scheduler", {"webhook": {"namespaceSelector": selector or {}}})
    for expected in policies(name="gpu-scheduler", namespaces=selector):
        actual = one(rendered, expected["kind"], expected["metadata"]["name"])
        assert actual["spec"] == expected["spec"]


def test_with_cert_manager_the_webhook_cannot_access_secrets_or_configurations() -> None:
    rendered = objects("gpu-scheduler", {"webhook": {"certManager": {"enabled": True}}})
    rules = one(rendered, "ClusterRole", "gpu-scheduler-webhook")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"gpuclaims"}
    assert not [each for each in rendered if each["kind"] == "Role" and "webhook" in each["metadata"]["name"]]
    issuer = one(rendered, "Certificate", "gpu-scheduler-webhook")["spec"]["issuerRef"]
    assert one(rendered, issuer["kind"], issuer["name"])["spec"] == {"selfSigned": {}}


def test_users_get_roles_for_reading_and_operating_and_prometheus_may_read() -> None:
    rendered = objects("gpufleet", {"serviceMonitor": {"enabled": True}})
    for name, verbs in (("gpufleet-viewer", ["get"]), ("gpufleet-operator", ["get", "update"])):
        [rule] = one(rendered, "ClusterRole", name)["rules"]
        assert rule == {"apiGroups": [GROUP], "resources": [RESOURCE], "verbs": verbs}
    binding = one(rendered, "ClusterRoleBinding", "gpufleet-metrics")
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (
        "gpufleet-viewer",
        "gpufleet-metrics",
    )
    other = objects("gpufleet", namespace="gpus")
    role = _variables(one(other, "Deployment", "gpufleet"))["GPUFLEET_AUTH_VIEWER_ROLE"]
    assert one(other, "ClusterRole", role)


@pytest.mark.parametrize(("chart", "values"), BOTH)
def test_no_role_has_a_wildcard_or_reads_all_secrets(chart: str, values: dict[str, Any]) -> None:
    for each in objects(chart, values):
        for rule in each.get("rules", []) if each["kind"] in ("Role", "ClusterRole") else []:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "*" not in words, each["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert rule.get("resourceNames") or rule["verbs"] == ["create"], each["metadata"]["name"]


@pytest.mark.parametrize(
    ("database", "key", "created"),
    [
        ({}, "url", {"gpufleet-database", "gpufleet-postgresql"}),
        ({"url": "postgresql://u:p@db/gpufleet"}, "url", {"gpufleet-database"}),
        ({"existingSecret": {"name": "mine", "key": "dsn"}}, "dsn", set()),
    ],
)
def test_the_database_is_bundled_or_a_url_or_in_a_secret(
    database: dict[str, Any], key: str, created: set[str]
) -> None:
    rendered = objects("gpufleet", {"database": database})
    names = {each["metadata"]["name"] for each in rendered if each["kind"] in ("Secret", "StatefulSet")}
    assert names - {"gpufleet-workload-key"} == created
    [variable] = [
        each
        for each in _container(one(rendered, "Deployment", "gpufleet"))["env"]
        if each["name"] == "GPUFLEET_STORE_URL"
    ]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference["key"] == key
    assert not created or one(rendered, "Secret", reference["name"])["stringData"][key]


def test_special_characters_in_the_password_are_escaped_in_the_url() -> None:
    password = "p a+s/s%w@rd:"
    secret = one(
        objects("gpufleet", {"database": {"bundled": {"password": password}}}), "Secret", "gpufleet-database"
    )
    in_url = urlsplit(secret["stringData"]["url"]).password
    assert in_url is not None
    assert unquote(in_url) == secret["stringData"]["password"] == password


def test_changing_the_database_restarts_the_pods() -> None:
    templates = [
        one(objects("gpufleet", {"database": {"url": url}}), "Deployment", "gpufleet")["spec"]["template"]
        for url in ("postgresql://u:p@old/gpufleet", "postgresql://u:p@new/gpufleet")
    ]
    assert templates[0] != templates[1]
    assert "postgresql://" not in json.dumps(templates)


def test_a_copy_of_a_chart_and_its_package_have_the_same_dashboards(tmp_path: Path) -> None:
    """Flux and others leave out symbolic links when they fetch a chart from git."""
    chart = tmp_path / "gpufleet"
    shutil.copytree(CHARTS / "gpufleet", chart, symlinks=True)
    assert [path for path in chart.rglob("*") if path.is_symlink()] == []
    done = helm("package", "--destination", str(tmp_path), str(chart))
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("*.tgz")
    dashboards = {path.name: path.read_text() for path in (CHARTS.parent / "mixin/dashboards").iterdir()}
    assert len(dashboards) >= 5
    for source in (chart, package):
        done = helm("template", "gpufleet", str(source), "--set", "grafana.dashboards.enabled=true")
        assert done.returncode == 0, done.stderr
        documents = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
        maps = [each["data"] for each in documents if "dashboard-" in each["metadata"]["name"]]
        assert {name: text for data in maps for name, text in data.items()} == dashboards


def test_every_dashboard_is_in_a_config_map() -> None:
    rendered = objects("gpufleet", {"grafana": {"dashboards": {"enabled": True}}})
    maps = [each for each in rendered if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    files = [name for each in maps for name in each["data"]]
    assert sorted(files) == sorted(path.name for path in (CHARTS / "gpufleet" / "dashboards").iterdir())
    for each in maps:
        for content in each["data"].values():
            dashboard = json.loads(content)
            ids = [panel["id"] for panel in dashboard["panels"]]
            assert len(set(ids)) == len(ids)
            assert dashboard["title"]


def _selectors(each: Object) -> list[dict[str, str]]:
    spec = each.get("spec", {})
    if each["kind"] == "Service":
        return [spec["selector"]]
    if each["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "PodDisruptionBudget"):
        return [spec["selector"]["matchLabels"]]
    if each["kind"] == "NetworkPolicy":
        return [spec["podSelector"]["matchLabels"]]
    return []


def _container(workload: Object) -> Object:
    container: Object = workload["spec"]["template"]["spec"]["containers"][0]
    return container


def _variables(workload: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in _container(workload)["env"]}


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def test_the_server_finds_and_reaches_the_agents_unless_prometheus_reads_them() -> None:
    service = one(objects("gpu-scheduler", namespace="gpu-system"), "Service", "gpu-scheduler-agent")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["ports"] == [{"name": "metrics", "port": 9401, "targetPort": "metrics"}]
    selected = dict(each.split("=") for each in LABELS.split(","))
    assert selected.items() <= service["metadata"]["labels"].items()

    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    for values, allowed in (({}, True), ({"prometheus": {"url": "http://prometheus:9090"}}, False)):
        role = one(
            objects("gpufleet", {"kubernetes": {"leaseNamespace": "gpu-system"}, **values}),
            "Role",
            "gpufleet-leases",
        )
        assert role["metadata"]["namespace"] == "gpu-system"
        assert (rule in role["rules"]) == allowed

    limited = {"networkPolicy": {"metricsFrom": [{"podSelector": {}}], "serverNamespace": "fleet"}}
    policy = one(objects("gpu-scheduler", limited), "NetworkPolicy", "gpu-scheduler-agent")
    server = policy["spec"]["ingress"][0]["from"][0]
    assert server["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "fleet"}
    labels = one(objects("gpufleet"), "Deployment", "gpufleet")["spec"]["template"]["metadata"]["labels"]
    assert server["podSelector"]["matchLabels"].items() <= labels.items()
