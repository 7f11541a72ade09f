"""Panels of Grafana dashboards: what is shown, with which query, how large."""

from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
_INFINITY = "yesoreyeram-infinity-datasource"


@dataclass(frozen=True)
class Query:
    """A query of Prometheus."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Request:
    """A request to the gpufleet API, through the Infinity data source; columns are (field, heading, type)."""

    url: str
    rows: str
    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Panel:
    """A panel; panels are placed from left to right in rows of 24 columns."""

    title: str
    queries: tuple[Query | Request, ...]
    kind: Literal["stat", "timeseries", "table"] = "timeseries"
    unit: str = ""
    width: int = 12
    height: int = 8
    stacked: bool = False
    percent: bool = False
    """Whether the axis goes from 0 to 100."""
    red_from: float | None = None
    """The value from which on a stat is red; green below."""
    description: str = ""
    transformations: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label, or free text."""

    name: str
    label: str
    query: str = ""


@dataclass(frozen=True)
class Dashboard:
    """A dashboard and the name of its file."""

    file: str
    uid: str
    title: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


def render(dashboard: Dashboard) -> Json:
    """Return a dashboard as Grafana imports it."""
    queries = [query for panel in dashboard.panels for query in panel.queries]
    sources = [_source("prometheus", "prometheus", "Prometheus")] if _any(queries, Query) else []
    if _any(queries, Request):
        label = "gpufleet (Infinity, base URL and token in the data source)"
        sources.append(_source("infinity", _INFINITY, label))
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["gpufleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [*sources, *map(_variable, dashboard.variables)]},
        "panels": _placed(dashboard.panels),
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "gpufleet",
                "tags": ["gpufleet"],
                "asDropdown": True,
                "keepTime": True,
            }
        ],
    }


def _any(queries: list[Query | Request], kind: type) -> bool:
    return any(isinstance(query, kind) for query in queries)


def _source(name: str, plugin: str, label: str) -> Json:
    return {"name": name, "type": "datasource", "query": plugin, "label": label, "hide": 0}


def _variable(variable: Variable) -> Json:
    if not variable.query:
        return {
            "name": variable.name,
            "type": "textbox",
            "label": variable.label,
            "query": "",
            "current": {"text": "", "value": ""},
        }
    return {
        "name": variable.name,
        "type": "query",
        "label": variable.label,
        "datasource": _PROMETHEUS,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


_PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}


def _placed(panels: tuple[Panel, ...]) -> list[Json]:
    placed: list[Json] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > 24:
            x, y, row_height = 0, y + row_height, 0
        position = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append({**_panel(panel), "gridPos": position, "id": number})
        x += panel.width
        row_height = max(row_height, panel.height)
    return placed


def _panel(panel: Panel) -> Json:
    source = {"type": _INFINITY, "uid": "${infinity}"} if _any(list(panel.queries), Request) else _PROMETHEUS
    defaults: Json = {"unit": panel.unit} if panel.unit else {}
    if panel.percent:
        defaults |= {"min": 0, "max": 100}
    if panel.red_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_from}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "targets": [
            {"datasource": source, **_target(query, panel), "refId": chr(ord("A") + number)}
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        **({"transformations": list(panel.transformations)} if panel.transformations else {}),
    }


_OPTIONS: dict[str, Json] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {},
}


def _target(query: Query | Request, panel: Panel) -> Json:
    if isinstance(query, Query):
        instant = panel.kind == "table"
        return {
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if instant else {}),
        }
    columns = [{"selector": field, "text": text, "type": kind} for field, text, kind in query.columns]
    return {
        "type": "json",
        "source": "url",
        "format": "table",
        "parser": "backend",
        "url": query.url,
        "url_options": {"method": "GET"},
        "root_selector": query.rows,
        "columns": columns,
    }
