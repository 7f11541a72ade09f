"""The Markdown pages of the repository, their shell blocks, and which commands of them no test runs."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```(bash|sh|shell|console)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@cache
def pages() -> dict[str, str]:
    """Return the text of every page that git knows, by its path."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {path: (ROOT / path).read_text() for path in done.stdout.split() if (ROOT / path).exists()}


@dataclass(frozen=True)
class Block:
    """A fenced block of commands: `bash` marks those that a test runs as written, `sh` the others."""

    page: str
    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """Yield its commands without comments, each on one line."""
        for line in self.text.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s+)# .*$", "", line)
            if command.strip():
                yield " ".join(command.split())


def blocks(page: str) -> list[Block]:
    """Return the shell blocks of a page in order."""
    return [Block(page, found[2], found[3]) for found in _BLOCK.finditer(pages()[page])]


WHOLE = ("docs/tutorial.md", "docs/how-to.md", "docs/troubleshooting.md", "docs/focus.md")
"""Pages whose `bash` blocks test_demo_commands.py runs one after the other, in one shell."""

ELSEWHERE = {
    "docs/api.md": "e2e/test_commands.py",
    "docs/accounting.md": "e2e/test_commands.py",
    "docs/readings.md": "e2e/test_commands.py",
    "docs/scheduling.md": "e2e/test_commands.py",
    "docs/install.md": "e2e/test_commands.py",
}
"""Pages whose `bash` blocks another test runs as written."""

ON_THE_DEMO = (
    r"(curl|gpufleet (get|fit|report|explain|simulate|db prune --dry-run)|kubectl (get|apply|describe))\b"
)
"""Commands that test_demo_commands.py runs one by one, of the pages in `SINGLE`."""

SINGLE = ("README.md", "docs/cli.md", "docs/runbooks/*", "examples/*")

RENDERED = r"helm (install|upgrade) (gpufleet|gpu-scheduler) charts/"
"""Commands that test_demo_commands.py runs with `helm template`, which needs no cluster."""

NOT_RUN = (
    ("README.md", r"make (run|test)$", "this is a test; e2e/test_wheel.py starts the demo from the wheel"),
    ("README.md", r"uvx ", "e2e/test_wheel.py installs the wheels and starts the demo"),
    ("README.md", r"curl -N ", "does not end; tests/server reads the stream of events"),
    ("README.md", r"gpufleet top$", "takes the whole screen; tests/client/test_top.py drives it"),
    ("README.md", r"kubectl gpufleet", "tests/cli/test_completion.py runs the plugin"),
    (
        "README.md",
        r"gpufleet serve --",
        "does not end; tests/cli/test_serve.py and e2e/test_server.py run servers",
    ),
    (
        "README.md",
        r"gpufleet agent --once",
        "needs a GPU; tests/agent runs it with a stand-in for the driver",
    ),
    ("README.md", r"export ", "the test sets the variables"),
    ("docs/cli.md", r"source <\(gpufleet completion", "tests/cli/test_completion.py runs it in each shell"),
    ("docs/cli.md", r"gpufleet login", "needs a provider; tests/cli/test_login.py has one"),
    (
        "docs/how-to.md",
        r"kubectl (cordon|drain|uncordon|create rolebinding)",
        "changes a cluster; kubectl's own",
    ),
    ("docs/how-to.md", r"gpufleet explain pod trainer-0", "a pod of the reader; the tutorial explains one"),
    ("*.md", r"gpufleet diag", "needs a GPU; tests/gpus tests it with a stand-in"),
    (
        "docs/tutorial.md",
        r"(python3 -m venv|venv/bin/pip|export PATH)",
        "e2e/test_wheel.py installs the wheels",
    ),
    ("docs/tutorial.md", r"gpufleet demo$", "the test runs it in the background"),
    (
        "docs/installation.md",
        r"(python3 -m venv|/opt/gpufleet/bin/)",
        "e2e/test_wheel.py installs the wheels",
    ),
    (
        "docs/installation.md",
        r"gpufleet serve ",
        "does not end; tests/sources and tests/cli/test_serve.py run servers",
    ),
    ("docs/installation.md", r"kubectl port-forward", "does not end; e2e/test_server.py reaches the Service"),
    (
        "docs/focus.md",
        r"gpufleet focus --month 2026-10",
        "a month of the reader; tests/cli/test_focus.py exports one",
    ),
    ("docs/focus.md", r"aws s3 cp", "the tool of a store, with a bucket of the reader"),
    ("docs/focus.md", r"focus-validator", "needs Python 3.12 and 300 MB of packages"),
    ("docs/training.md", r"curl -X POST", "tests/server tests the route"),
    ("docs/install.md", r"(make (image|sbom)|for role)", "needs a container engine or a registry"),
    ("docs/releasing.md", r"", "releases are made by .github/workflows/release.yml"),
    (
        "docs/delivery.md",
        r"kubectl",
        "needs a node with GPUs; e2e/test_delivery.py does the same on a real kubelet",
    ),
    ("docs/login.md", r"curl ", "needs a provider; e2e/test_oidc.py has one"),
    (
        "docs/placement.md",
        r"gpufleet simulate",
        "files of the reader; the page of the example trace has a command that is run",
    ),
    ("docs/login.md", r"kubectl create secret", "kubectl's own"),
    (
        "charts/*",
        r"kubectl (create|apply|delete)",
        "kubectl's own; e2e/test_charts.py and e2e/test_upgrade.py do the same",
    ),
    ("charts/*", r"helm (test|get|uninstall)", "e2e/test_charts.py and e2e/test_whole_cluster.py"),
    ("charts/*", r"gpufleet serve --new-token", "the how-to guides run it"),
    ("docs/security.md", r"kubectl create", "kubectl's own; e2e/test_server.py binds both roles"),
    (
        "docs/agent.md",
        r"gpufleet agent",
        "needs GPUs or does not end; tests/agent runs it with a stand-in for the driver",
    ),
    (
        "docs/agent.md",
        r"(kubectl apply --server-side|[{\"]|EOF)",
        "a node of the reader; tests/agent cordons a GPU in this way",
    ),
    ("docs/webhook.md", r"gpufleet webhook", "does not end; tests/webhook and e2e/test_webhook.py run it"),
    (
        "docs/dashboard.md",
        r"(make|npm|python)",
        "commands for developers of the dashboard; `make test` runs its tests",
    ),
    ("docs/e2e.md", r"(make e2e|python -m e2e.cluster)", "the end-to-end tests themselves"),
    ("docs/operations.md", r"gpufleet db", "a database of the reader; tests/cli/test_db.py runs both"),
    (
        "docs/simulation.md",
        r"gpufleet simulate",
        "files or weeks of the reader; tests/cli/test_simulate.py and the how-to guides run it",
    ),
    ("packages/kubelite/README.md", r"(pip install|pytest)", "`make test` runs the tests of kubelite"),
    ("mixin/README.md", r"(promtool|jsonnet)", "tests/charts/test_mixin.py runs promtool"),
    ("SECURITY.md", r"", "needs the published images"),
    ("docs/runbooks/*", r"(nvidia-smi|timeout 20 nvidia-smi|dmesg)", "on a node with GPUs"),
    (
        "docs/runbooks/*",
        r"curl -s .*PROMETHEUS",
        "needs a Prometheus; tests/charts/test_mixin.py runs the queries of alerts",
    ),
    ("docs/runbooks/*", r"kubectl( -n \S+)? logs", "the demo's pods have no logs"),
    (
        "docs/runbooks/*",
        r"kubectl (top|auth|get --raw)",
        "needs a metrics server or RBAC, which the demo lacks",
    ),
    ("docs/runbooks/*", r"kubectl get resourceclaims", "the demo has no DRA"),
    ("docs/runbooks/*", r"kubectl describe deploy gpufleet", "the demo has no Deployment of the server"),
    ("docs/runbooks/*", r"helm list", "needs an installed chart"),
    (
        "docs/runbooks/*",
        r"DATABASE_URL=… gpufleet db check",
        "a database of the reader; tests/cli/test_db.py runs it",
    ),
    (
        "docs/runbooks/*",
        r"gpufleet simulate --nodes nodes.csv",
        "files of the reader; tests/cli/test_simulate.py runs it",
    ),
)
"""Commands that no test runs as written: page, beginning of the command, reason."""


def reason_not_to_run(block: Block, command: str) -> str:
    """Return why a command is not run, empty if it is."""
    for page, beginning, reason in NOT_RUN:
        if fnmatch(block.page, page) and re.match(beginning, command):
            return reason
    return ""


def is_run_on_the_demo(block: Block, command: str) -> bool:
    """Return whether test_demo_commands.py runs a single command."""
    ours = any(fnmatch(block.page, page) for page in SINGLE)
    return ours and bool(re.match(ON_THE_DEMO, command)) and not reason_not_to_run(block, command)


def is_run(block: Block, command: str) -> bool:
    """Return whether a test runs a command."""
    if block.language == "bash" and block.page in (*WHOLE, *ELSEWHERE):
        return True
    return is_run_on_the_demo(block, command) or bool(re.match(RENDERED, command))
