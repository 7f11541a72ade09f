"""Rules for Prometheus, and promtool tests with series that fire each alert and series that do not."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mixin.table.rule import PLAIN, Alert, Group, filled

Json = dict[str, Any]


def rule_groups(groups: Iterable[Group], values: Mapping[str, str] = PLAIN) -> list[Json]:
    """Return groups as Prometheus reads them."""
    return [{"name": f"gpufleet-{group.name}", "rules": rules_of(group, values)} for group in groups]


def rules_of(group: Group, values: Mapping[str, str]) -> list[Json]:
    """Return the rules of one group with its placeholders replaced."""
    recordings = [{"record": each.record, "expr": filled(each.expr, values)} for each in group.recordings]
    return [*recordings, *(_alert(each, values) for each in group.alerts)]


def _alert(alert: Alert, values: Mapping[str, str]) -> Json:
    return {
        "alert": alert.name,
        "expr": filled(alert.expr, values),
        **({"for": alert.hold} if alert.hold else {}),
        "labels": {"severity": alert.severity},
        "annotations": annotations(alert, values),
    }


def annotations(alert: Alert, values: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of an alert, with the address of its runbook."""
    return {
        "summary": filled(alert.summary, values),
        "description": filled(alert.description, values),
        "runbook_url": filled(f"<<runbooks>>/{alert.name}.md", values),
    }


def promtool_tests(alerts: Iterable[Alert], rule_file: str) -> Json:
    """Return a test file for promtool with two cases per alert."""
    tests = []
    for alert in alerts:
        tests.append(_case(alert, fires=True))
        tests.append(_case(alert, fires=False))
    return {"rule_files": [rule_file], "evaluation_interval": "1m", "tests": tests}


def _case(alert: Alert, *, fires: bool) -> Json:
    firing = alert.firing
    expected = {
        "exp_labels": {"severity": alert.severity, **firing.labels},
        "exp_annotations": {name: _rendered(text, alert) for name, text in annotations(alert, PLAIN).items()},
    }
    series = firing.series if fires else alert.quiet
    return {
        "name": f"{alert.name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{firing.minute}m",
                "alertname": alert.name,
                "exp_alerts": [expected] if fires else [],
            }
        ],
    }


def _rendered(text: str, alert: Alert) -> str:
    """Return a text as Prometheus renders it for the alert's firing case."""
    labelled = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: alert.firing.labels.get(found[1], ""), text)
    return re.sub(r"{{ \$value[^}]*}}", alert.firing.value, labelled)
