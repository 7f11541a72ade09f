"""Alerts and dashboards use valid PromQL and metrics that gpufleet exports."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from charts.reference import CHARTS, NAMES
from prometheus_client import CollectorRegistry
from tests.accounting.histories import Prometheus
from tests.charts.rendering import Object, everything, objects
from tests.prometheus_fixture import binaries

from gpufleet.exporters.known_exporters import AGENT
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.listing import Listing
from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.metrics import ServerMetrics


def _rules(chart: str) -> Object:
    [rule] = [each for each in objects(chart, everything(chart)) if each["kind"] == "PrometheusRule"]
    spec: Object = rule["spec"]
    return spec


@pytest.mark.parametrize("chart", NAMES)
def test_promtool_accepts_the_alerts(chart: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(_rules(chart)))
    done = subprocess.run(
        [binaries().promtool, "check", "rules", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chart", NAMES)
def test_every_alert_has_a_severity_a_summary_and_a_description(chart: str) -> None:
    for group in _rules(chart)["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert {"summary", "description"} <= rule["annotations"].keys()


def test_late_accounting_fires_unless_another_server_is_up_to_date(
    tmp_path: Path,
) -> None:
    rules = objects("gpufleet", {"prometheusRule": {"enabled": True, "snapshotsLateAfter": 900}})
    [rule] = [each for each in rules if each["kind"] == "PrometheusRule"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    # One step per minute: snapshots stop after the first; hours are rolled up until the second is missed.
    series = {
        '{source="snapshots",cluster="west",instance="a"}': "0+60x120",
        '{source="snapshots",cluster="east",instance="a"}': "0+60x120",
        '{source="snapshots",cluster="east",instance="b"}': "30x120",
        '{source="hours",cluster="west",instance="a"}': "60+60x120",
        '{source="hours",cluster="east",instance="a"}': "60+60x60 60+60x60",
    }

    def alerts(name: str, minutes: int, **summaries: str) -> Object:
        found = [
            {"exp_labels": {"severity": "warning", "cluster": name}, "exp_annotations": {"summary": summary}}
            for name, summary in summaries.items()
        ]
        return {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": found}

    late = "The newest snapshot of cluster west is 25m 0s old"
    missed = "No hour of cluster west was rolled up for 1h 30m 0s"
    described = {
        rule["alert"]: rule["annotations"]["description"]
        for group in rule["spec"]["groups"]
        for rule in group["rules"]
    }
    expected = [
        alerts("GpufleetSnapshotsLate", 15),
        alerts("GpufleetSnapshotsLate", 25, west=late),
        alerts("GpufleetHoursLate", 74),
        alerts("GpufleetHoursLate", 89, west=missed),
    ]
    for each in expected:
        for alert in each["exp_alerts"]:
            alert["exp_annotations"]["description"] = described[each["alertname"]]
    check = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"gpufleet_refresh_age_seconds{labels}", "values": values}
                    for labels, values in series.items()
                ],
                "alert_rule_test": expected,
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(check))
    done = subprocess.run(
        [binaries().promtool, "test", "rules", "test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_and_the_next_xid_of_a_kind_fire(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(_rules("gpu-scheduler")))
    [rule] = [
        each
        for group in _rules("gpu-scheduler")["groups"]
        for each in group["rules"]
        if each["alert"] == "GpuXid"
    ]
    alert = {
        "exp_labels": {"severity": "warning", "node": "a", "gpu": "3", "xid": "48"},
        "exp_annotations": {
            "summary": "GPU 3 of a reported XID 48",
            "description": rule["annotations"]["description"].replace("{{ $labels.node }}", "a"),
        },
    }
    # One step per minute: the first XID in minute 30, the second in minute 60.
    series = {"series": 'nvidia_gpu_xid_errors_total{node="a",gpu="3",xid="48"}', "values": "_x29 1x29 2x60"}
    expected = [
        {"eval_time": f"{minute}m", "alertname": "GpuXid", "exp_alerts": [alert] if fires else []}
        for minute, fires in ((20, False), (32, True), (50, False), (62, True), (90, False))
    ]
    check = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": [series], "alert_rule_test": expected}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(check))
    done = subprocess.run(
        [binaries().promtool, "test", "rules", "test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_dashboards_use_exported_metrics() -> None:
    exported = _exported()
    used = {name for query in _queries() for name in re.findall(r"\b(?:gpufleet|nvidia)_[a-z_]+", query)}
    assert len(used) > 10
    assert used <= exported, used - exported


def test_alerts_and_dashboards_select_states_that_are_exported() -> None:
    fleet = Fleet("prod")
    fleet.put_node(FleetNode(name="a", gpu_count=8))
    collected = {
        (family.name, sample.labels["state"])
        for family in FleetMetrics(Clusters([Cluster("prod", fleet, Listing(fleet), Prometheus())])).collect()
        for sample in family.samples
    }
    used = {
        found for query in _queries() for found in re.findall(r'(gpufleet_\w+){[^}]*state="(\w+)"', query)
    }
    assert len(used) > 3
    assert used <= collected, used - collected


def test_a_cluster_with_unknown_allocation_does_not_lower_the_allocation_of_others(tmp_path: Path) -> None:
    dashboard = json.loads((CHARTS / "gpufleet" / "dashboards" / "fleet.json").read_text())
    [panel] = [each for each in dashboard["panels"] if each["title"].startswith("Allocated (")]
    query = panel["targets"][0]["expr"].replace("$cluster", ".*")
    series = {"schedulable_allocated": {"west": 6}, "schedulable": {"west": 8, "unknown": 8}}
    values = [
        {"series": f'gpufleet_gpus{{cluster="{cluster}",state="{state}"}}', "values": f"{value}x2"}
        for state, clusters in series.items()
        for cluster, value in clusters.items()
    ]
    expected = [{"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 0.75}]}]
    check = {"tests": [{"interval": "1m", "input_series": values, "promql_expr_test": expected}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(check))
    done = subprocess.run(
        [binaries().promtool, "test", "rules", "test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_use_only_data_sources_of_their_variables() -> None:
    for path in (CHARTS / "gpufleet" / "dashboards").glob("*.json"):
        dashboard = json.loads(path.read_text())
        offered = {
            f"${{{each['name']}}}" for each in dashboard["templating"]["list"] if each["type"] == "datasource"
        }
        for panel in dashboard["panels"]:
            assert panel["datasource"]["uid"] in offered, path.name


def _queries() -> Iterator[str]:
    for chart in NAMES:
        yield from (rule["expr"] for group in _rules(chart)["groups"] for rule in group["rules"])
    for path in (CHARTS / "gpufleet" / "dashboards").glob("*.json"):
        dashboard = json.loads(path.read_text())
        yield from (each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query")
        for panel in dashboard["panels"]:
            yield from (target["expr"] for target in panel["targets"] if "expr" in target)


def _exported() -> set[str]:
    metrics = [metric.name for group in AGENT.metrics.values() for metric in group]
    metrics += [fault.name for fault in AGENT.faults] + list(AGENT.processes.values())
    names = {f"{AGENT.prefix}{name}" for name in metrics}
    fleet = CollectorRegistry()
    fleet.register(FleetMetrics(Clusters([])))
    for registry in (ServerMetrics().registry, fleet, SchedulerMetrics().registry):
        for family in registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            names |= {f"{family.name}{suffix}" for suffix in suffixes.get(family.type, ("",))}
    return names
