// A monitoring mixin: import it, and override `_config.runbookUrl` with the address of the runbook pages.
//
//   local gpufleet = (import 'mixin.libsonnet') + { _config+:: { runbookUrl: 'https://wiki.example.com/gpufleet' } };
//   gpufleet.prometheusAlerts
{
  _config+:: {
    runbookUrl: 'docs/runbooks',
  },

  local withRunbook(rule) =
    if std.objectHas(rule, 'alert')
    then rule { annotations+: { runbook_url: $._config.runbookUrl + '/' + rule.alert + '.md' } }
    else rule,
  local withRunbooks(groups) = [
    group { rules: [withRunbook(rule) for rule in group.rules] }
    for group in groups
  ],

  prometheusAlerts+:: {
    groups+: withRunbooks(
      std.parseYaml(importstr 'alerts/fleet.yaml').groups
      + std.parseYaml(importstr 'alerts/server.yaml').groups
      + std.parseYaml(importstr 'alerts/scheduler.yaml').groups
      + std.parseYaml(importstr 'alerts/agent.yaml').groups
    ),
  },
  prometheusRules+:: {
    groups+: std.parseYaml(importstr 'rules.yaml').groups,
  },
  grafanaDashboards+:: {
    'fleet.json': import 'dashboards/fleet.json',
    'node.json': import 'dashboards/node.json',
    'workload.json': import 'dashboards/workload.json',
    'accounting.json': import 'dashboards/accounting.json',
    'scheduler.json': import 'dashboards/scheduler.json',
  },
}
