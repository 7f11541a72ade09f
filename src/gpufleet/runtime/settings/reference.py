"""Generate the settings page of the documentation from the declarations."""

import inspect

from gpufleet.runtime.settings.field import Setting, settings_of
from gpufleet.runtime.settings.groups import CLUSTER_GROUPS, GROUPS
from gpufleet.runtime.settings.parse import default_text, takes

_HEAD = """# Settings

Generated from the code by `make docs`; a test checks that it is up to date.

A setting is looked up in this order: command-line flag, environment variable, `gpufleet.toml` (or the file
named by `--config` or `GPUFLEET_CONFIG`), default. A wrong value stops the program with a message that names
the setting, the source of the value and what the setting takes.

Only the settings that are often set by hand have a flag of their own. `--set GROUP.NAME=VALUE` sets any other,
and may be repeated: `gpufleet agent --set agent.period=1s --set devices.identify=true`. Secrets are refused there,
because command lines are public.

One server can show several clusters. Each has a name and, in the file, its own tables for the groups
{clusters}. What they leave out is taken from the groups of all clusters:

```toml
[clusters.east.kubernetes]
context = "east"
[clusters.east.metrics]
url = "http://prometheus.east:9090"

[clusters.west.kubernetes]
context = "west"
```
"""


def reference() -> str:
    """Return the whole page in Markdown."""
    clusters = ", ".join(f"`{name}`" for name in CLUSTER_GROUPS)
    return "\n".join([_HEAD.format(clusters=clusters), *(_group(name, cls) for name, cls in GROUPS.items())])


def _group(name: str, cls: type) -> str:
    rows = [
        "| setting | flag | environment | default | takes | purpose |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(setting) for setting in settings_of(name, cls)),
    ]
    return f"## `[{name}]`\n\n{inspect.getdoc(cls)}\n\n" + "\n".join(rows) + "\n"


def _row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" if setting.flag else "–"
    variables = ", ".join(f"`{variable}`" for variable in setting.variables)
    cells = [
        f"`{setting.name}`",
        flag,
        variables,
        _shown(default_text(setting)),
        takes(setting),
        setting.facts.help,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(default: str) -> str:
    return f"`{default}`" if default else "none"
