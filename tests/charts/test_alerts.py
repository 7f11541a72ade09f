"""Alerts and dashboards use valid PromQL and metrics that gpufleet exports."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from charts.reference import CHARTS, NAMES
from tests.charts.exported import exported_samples
from tests.charts.rendering import Object, everything, objects
from tests.prometheus_fixture import binaries


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
def _alerts(chart: str) -> list[Object]:
    return [rule for group in _rules(chart)["groups"] for rule in group["rules"] if "alert" in rule]


def _write_alert(folder: Path, rule: Object) -> None:
    """Write a file with one alert, without its texts."""
    bare = {name: value for name, value in rule.items() if name != "annotations"}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [bare]}]}))


@pytest.mark.parametrize("chart", NAMES)
def test_every_alert_has_a_severity_texts_and_a_runbook(chart: str) -> None:
    for rule in _alerts(chart):
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description", "runbook_url"} <= rule["annotations"].keys()


def test_the_age_of_snapshots_that_is_late_is_a_value_of_the_chart(tmp_path: Path) -> None:
    rules = objects("gpufleet", {"prometheusRule": {"enabled": True, "snapshotsLateAfter": 600}})
    [spec] = [each["spec"] for each in rules if each["kind"] == "PrometheusRule"]
    found = [rule for group in spec["groups"] for rule in group["rules"]]
    [late] = [rule for rule in found if rule.get("alert") == "GpufleetSnapshotsLate"]
    _write_alert(tmp_path, late)
    # One step per minute: snapshots of west stop, a second server is up to date with those of east.
    series = {
        'gpufleet_refresh_age_seconds{source="snapshots",cluster="west",instance="a"}': "0+60x120",
        'gpufleet_refresh_age_seconds{source="snapshots",cluster="east",instance="a"}': "0+60x120",
        'gpufleet_refresh_age_seconds{source="snapshots",cluster="east",instance="b"}': "30x120",
    }
    _promtool_test(
        tmp_path,
        "GpufleetSnapshotsLate",
        series,
        {"severity": "warning", "cluster": "west"},
        {15: False, 17: True},
    )


def test_the_first_and_the_next_xid_of_a_kind_fire(tmp_path: Path) -> None:
    [rule] = [each for each in _alerts("gpu-scheduler") if each["alert"] == "GpuXid"]
    _write_alert(tmp_path, rule)
    # One step per minute: the first XID in minute 30, the second in minute 60.
    series = {'nvidia_gpu_xid_errors_total{node="a",gpu="3",xid="48"}': "_x29 1x29 2x60"}
    labels = {"severity": "warning", "node": "a", "gpu": "3", "xid": "48"}
    expected = {20: False, 32: True, 50: False, 62: True, 90: False}
    _promtool_test(tmp_path, "GpuXid", series, labels, expected)


def _promtool_test(
    folder: Path, alert: str, series: dict[str, str], labels: dict[str, str], fires: dict[int, bool]
) -> None:
    """Check at which minutes an alert fires."""
    expected = [
        {
            "eval_time": f"{minute}m",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": labels}] if firing else [],
        }
        for minute, firing in fires.items()
    ]
    values = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "1m", "input_series": values, "alert_rule_test": expected}]
    check = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yaml").write_text(yaml.safe_dump(check))
    command = [str(binaries().promtool), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_dashboards_use_exported_metrics() -> None:
    exported = {name for name, _ in exported_samples()}
    used = {name for query in _queries() for name in re.findall(r"\b(?:gpufleet|nvidia)_[a-z0-9_]+", query)}
    assert len(used) > 10
    assert used <= exported, used - exported


def test_alerts_and_dashboards_select_states_that_are_exported() -> None:
    collected = {(name, labels["state"]) for name, labels in exported_samples() if "state" in labels}
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
