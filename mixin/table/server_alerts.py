"""Alerts about the gpufleet server itself."""

from mixin.table.rule import Alert, Firing

_AGE = 'gpufleet_refresh_age_seconds{source="%s",cluster="%s",instance="%s"}'
_COUNT = 'gpufleet_http_request_seconds_count{method="GET",route="/api/nodes",status="%s"}'
_BUCKET = 'gpufleet_http_request_seconds_bucket{method="GET",route="/api/nodes",status="200",le="%s"}'

ALERTS = (
    Alert(
        "GpufleetDown",
        "absent(up{<<server>>} == 1)",
        "critical",
        "No gpufleet server is up",
        "Missed hours are filled in after the server starts again.",
        Firing({'up{job="gpufleet",instance="a"}': "0x30"}, 20),
        {'up{job="gpufleet",instance="a"}': "0x30", 'up{job="gpufleet",instance="b"}': "1x30"},
        "5m",
    ),
    Alert(
        "GpufleetDegraded",
        "sum by (source, cluster) (rate(gpufleet_source_errors_total[5m])) > 0 "
        "or sum by (operation) (rate(gpufleet_store_errors_total[5m])) > 0",
        "warning",
        "gpufleet can't read {{ $labels.source }}{{ $labels.operation }}",
        "/api/healthz shows which dependency fails and why.",
        Firing(
            {'gpufleet_source_errors_total{source="slurm",cluster="west"}': "0+1x30"},
            25,
            {"source": "slurm", "cluster": "west"},
        ),
        {'gpufleet_source_errors_total{source="slurm",cluster="west"}': "0 1x30"},
        "10m",
    ),
    Alert(
        "GpufleetStoreDown",
        'min(gpufleet_dependency_up{dependency="store"}) == 0',
        "critical",
        "gpufleet's database does not answer or refuses writes",
        "Training numbers and snapshots are not stored. The disk may be full, or the database read-only; "
        "/api/healthz shows the reason to callers with a token.",
        Firing({'gpufleet_dependency_up{dependency="store"}': "0x30"}, 20),
        {'gpufleet_dependency_up{dependency="store"}': "1x30"},
        "5m",
    ),
    Alert(
        "GpufleetDependencyDown",
        'min by (dependency) (gpufleet_dependency_up{dependency!~"store|accounting|clock"}) == 0',
        "warning",
        "{{ $labels.dependency }}, which gpufleet depends on, does not answer",
        "What the server shows of it is out of date. /api/healthz shows the reason to callers with a token.",
        Firing({'gpufleet_dependency_up{dependency="metrics"}': "0x30"}, 20, {"dependency": "metrics"}),
        {'gpufleet_dependency_up{dependency="metrics"}': "0x8 1x22"},
        "10m",
    ),
    Alert(
        "GpufleetWithoutLeader",
        'max(gpufleet_dependency_up{dependency="accounting"}) == 0',
        "critical",
        "No gpufleet server writes the accounting",
        "No server leads, or the leader stores nothing: there are no new snapshots, hours and reports. /api/healthz shows "
        "the leader and its epoch to callers with a token.",
        Firing({'gpufleet_dependency_up{dependency="accounting",instance="a"}': "0x30"}, 20),
        {
            'gpufleet_dependency_up{dependency="accounting",instance="a"}': "0x30",
            'gpufleet_dependency_up{dependency="accounting",instance="b"}': "1x30",
        },
        "2m",
    ),
    Alert(
        "GpufleetClockWrong",
        "abs(gpufleet_clock_ahead_seconds) > 5",
        "warning",
        "The clock of gpufleet {{ $labels.instance }} differs from that of its database by {{ $value | humanizeDuration }}",
        "From a difference of store.max_clock_skew (60s) on this server does no accounting.",
        Firing({'gpufleet_clock_ahead_seconds{instance="a"}': "-90x30"}, 20, {"instance": "a"}, "1m 30s"),
        {'gpufleet_clock_ahead_seconds{instance="a"}': "0.3x30"},
        "5m",
    ),
    Alert(
        "GpufleetReadingsOld",
        'min by (cluster) (gpufleet_refresh_age_seconds{source="readings"}) > 300',
        "warning",
        "Readings of cluster {{ $labels.cluster }} are {{ $value | humanizeDuration }} old",
        "The metric source does not respond or has no new samples.",
        Firing({_AGE % ("readings", "west", "a"): "0+60x60"}, 30, {"cluster": "west"}, "30m 0s"),
        {_AGE % ("readings", "west", "a"): "0+60x60", _AGE % ("readings", "west", "b"): "15x60"},
        "5m",
    ),
    Alert(
        "GpufleetSnapshotsLate",
        'min by (cluster) (gpufleet_refresh_age_seconds{source="snapshots"}) > <<snapshotsLateAfter>>',
        "warning",
        "The newest snapshot of cluster {{ $labels.cluster }} is {{ $value | humanizeDuration }} old",
        "The cluster's API is unreachable, no server does the accounting, or database writes fail; /api/healthz "
        "and the log say which. Missing hours are rolled up from the metric source.",
        Firing({_AGE % ("snapshots", "west", "a"): "0+60x60"}, 40, {"cluster": "west"}, "40m 0s"),
        {_AGE % ("snapshots", "west", "a"): "0+60x60", _AGE % ("snapshots", "west", "b"): "30x60"},
        "5m",
    ),
    Alert(
        "GpufleetHoursLate",
        'min by (cluster) (gpufleet_refresh_age_seconds{source="hours"}) > 4500',
        "warning",
        "No hour of cluster {{ $labels.cluster }} was rolled up for {{ $value | humanizeDuration }}",
        "An hour is rolled up two minutes after its end. A failed roll-up is retried every five minutes; the "
        "log of the server that does the accounting says why it fails.",
        Firing({_AGE % ("hours", "west", "a"): "60+60x120"}, 100, {"cluster": "west"}, "1h 41m 0s"),
        {_AGE % ("hours", "west", "a"): "60+60x60 60+60x60"},
        "5m",
    ),
    Alert(
        "GpufleetErrors",
        'sum(rate(gpufleet_http_request_seconds_count{status=~"5.."}[5m])) '
        "/ sum(rate(gpufleet_http_request_seconds_count[5m])) > 0.05",
        "warning",
        "{{ $value | humanizePercentage }} of the requests to gpufleet fail",
        "The server answers with status 5xx. Its log has the trace id and the reason of each.",
        Firing({_COUNT % "500": "0+10x30", _COUNT % "200": "0+90x30"}, 25, value="10%"),
        {_COUNT % "500": "0+1x30", _COUNT % "200": "0+99x30"},
        "10m",
    ),
    Alert(
        "GpufleetSlow",
        "histogram_quantile(0.99, sum by (le, route) (rate(gpufleet_http_request_seconds_bucket[5m]))) > 2.5 "
        "and on (route) sum by (route) (rate(gpufleet_http_request_seconds_count[5m])) > 0.1",
        "warning",
        "One percent of the requests to {{ $labels.route }} take more than {{ $value | humanizeDuration }}",
        "The database or the metric source is slow, or the server has too little CPU.",
        Firing(
            {
                _BUCKET % "2.5": "0+0x40",
                _BUCKET % "5.0": "0+60x40",
                _BUCKET % "+Inf": "0+60x40",
                _COUNT % "200": "0+60x40",
            },
            30,
            {"route": "/api/nodes"},
            "4.975s",
        ),
        {
            _BUCKET % "2.5": "0+60x40",
            _BUCKET % "5.0": "0+60x40",
            _BUCKET % "+Inf": "0+60x40",
            _COUNT % "200": "0+60x40",
        },
        "15m",
    ),
    Alert(
        "GpufleetOverloaded",
        'sum(rate(gpufleet_http_request_seconds_count{status=~"429|503"}[5m])) > 1',
        "warning",
        "gpufleet turns {{ $value | humanize }} requests per second away",
        "Callers exceed the limits of the server or of one caller. Add replicas, or find the caller in the audit log.",
        Firing({_COUNT % "503": "0+120x30"}, 25, value="2"),
        {_COUNT % "503": "0+12x30"},
        "10m",
    ),
)
