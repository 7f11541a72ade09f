"""The tables that alerts, recording rules and dashboards are generated from."""
