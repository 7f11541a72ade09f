"""The mixin: generated files are current, alerts fire and are quiet, panels have data on a real Prometheus."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
import yaml
from mixin.generate import ROOT, files
from mixin.rules import promtool_tests
from mixin.table.dashboards import DASHBOARDS
from mixin.table.groups import ALERTS, GROUPS
from mixin.table.panels import Query
from prometheus_client.parser import text_string_to_metric_families
from tests.charts.exported import agent_metrics, scheduler_metrics, server_metrics, webhook_metrics
from tests.prometheus_fixture import binaries, running_prometheus

SECTIONS = ("## Meaning", "## Impact", "## Diagnosis", "## Remedy")
HOURS = 3
STEP = 60
VARIABLES = {
    "$cluster": ".*",
    "$namespace": ".*",
    "$node": ".*",
    "$__range_s": "3600",
    "$__range": "1h",
}


@pytest.mark.parametrize("path", files())
def test_generated_files_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text() == files()[path], "run `make docs`"


def test_no_generated_file_is_left_over() -> None:
    folders = ("mixin/alerts", "charts/gpufleet/dashboards")
    found = {f"{folder}/{path.name}" for folder in folders for path in (ROOT / folder).iterdir()}
    assert found <= files().keys()


@pytest.mark.parametrize("group", [group.name for group in GROUPS if group.alerts])
def test_every_alert_fires_and_is_quiet(group: str, tmp_path: Path) -> None:
    alerts = ROOT / f"mixin/alerts/{group}.yaml"
    [table] = [each for each in GROUPS if each.name == group]
    cases = promtool_tests(table.alerts, str(alerts))
    assert len(cases["tests"]) == 2 * len(table.alerts)
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    for command in (("check", "rules", str(alerts)), ("test", "rules", "cases.yaml")):
        done = subprocess.run(
            [str(binaries().promtool), *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_recording_rules() -> None:
    command = [str(binaries().promtool), "check", "rules", "rules.yaml"]
    done = subprocess.run(command, cwd=ROOT / "mixin", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_one_runbook_with_the_four_sections_and_a_command() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names)) >= 20
    pages = {path.stem: path.read_text() for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert pages.keys() - {"README"} == set(names)
    for alert in ALERTS:
        page = pages[alert.name]
        assert page.startswith(f"# {alert.name}\n"), alert.name
        positions = [page.index(section) for section in SECTIONS]
        assert positions == sorted(positions), alert.name
        assert "```" in page[positions[2] : positions[3]], f"{alert.name}: the diagnosis has no command"
        assert f"[{alert.name}]({alert.name}.md)" in pages["README"]


def test_jsonnet_gets_every_alert_rule_and_dashboard_from_the_mixin() -> None:
    own = "{ _config+:: { runbookUrl: 'https://wiki.example.com' } }"
    parts = "alerts: m.prometheusAlerts, rules: m.prometheusRules, dashboards: m.grafanaDashboards"
    program = f"local m = (import 'mixin.libsonnet') + {own}; {{ {parts} }}"
    found = json.loads(_jsonnet.evaluate_snippet(str(ROOT / "mixin/program.jsonnet"), program))
    rules = [rule for group in found["alerts"]["groups"] for rule in group["rules"]]
    pages = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}
    assert pages == {alert.name: f"https://wiki.example.com/{alert.name}.md" for alert in ALERTS}
    assert found["rules"] == yaml.safe_load((ROOT / "mixin/rules.yaml").read_text())
    files_of_dashboards = (ROOT / "mixin/dashboards").iterdir()
    assert found["dashboards"] == {path.name: json.loads(path.read_text()) for path in files_of_dashboards}


def test_every_panel_has_data_on_a_real_prometheus() -> None:
    end = int(time.time()) // STEP * STEP
    config = "global: {evaluation_interval: 15s}\n"
    with running_prometheus(config, _history(end)) as address:
        queries = [
            (dashboard.title, panel.title, query.expr)
            for dashboard in DASHBOARDS
            for panel in dashboard.panels
            for query in panel.queries
            if isinstance(query, Query)
        ]
        empty = [each for each in queries if not _results(address, each[2], end - 2 * STEP)]
        for group in GROUPS:
            for rule in group.recordings:
                expr = re.sub(r"{?<<\w+>>}?", "", rule.expr)
                assert _results(address, expr, end - 2 * STEP), rule.record
    assert empty == []


def _results(address: str, expr: str, at: int) -> list[Any]:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    query = urllib.parse.urlencode({"query": expr, "time": at})
    with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=20) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def _history(end: int) -> str:
    """Return some hours of every exported metric as OpenMetrics; counters grow with each step."""
    lines = list(_lines(end))
    return "\n".join([*lines, "# EOF", ""])


def _lines(end: int) -> Iterator[str]:
    for text in (server_metrics(), scheduler_metrics(), agent_metrics(), webhook_metrics()):
        for family in text_string_to_metric_families(text.decode()):
            if not family.name.startswith(("gpufleet_", "nvidia_")):
                continue
            grows = family.type in ("counter", "histogram")
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
                for number, at in enumerate(range(end - HOURS * 3600, end, STEP)):
                    value = sample.value * (number + 1) if grows else sample.value
                    yield f"{sample.name}{{{labels}}} {value} {at}"
