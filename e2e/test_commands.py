"""Run the commands in the documentation: those for localhost:8080 on the demo, the others on a cluster.

Every fenced block marked `bash` is run; `sh` marks commands that a test machine cannot run, such as pushing to a
registry. For `localhost:8080` and `prometheus:9090`, a configuration file makes curl connect to the ports of this
run and fail on a status of 400 and above. The commands themselves are not changed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.shim.nvml import switched

from e2e.cluster import Cluster
from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import is_healthy
from e2e.fakenodes import FakeNodes
from e2e.system import Observations, Release, System, Users
from e2e.system.release import delete_crds

ROOT = Path(__file__).parents[1]
PAGES = ("api.md", "accounting.md", "readings.md", "scheduling.md", "install.md")


@dataclass(frozen=True)
class Block:
    """A fenced block of commands."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    @property
    def on_a_cluster(self) -> bool:
        """Whether it is for a cluster instead of the demo."""
        return bool(re.search(r"^(kubectl|helm) |prometheus:", self.text, re.MULTILINE))

    @property
    def commands(self) -> list[str]:
        """Its commands, without comments, each on one line."""
        joined = self.text.replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def blocks() -> list[Block]:
    """Return every block of the pages in order."""
    found = []
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        fenced = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        found += [Block(page, number, block) for number, block in enumerate(fenced, 1)]
    return found


DEMO = [block for block in blocks() if not block.on_a_cluster]
KUBECTL = [block for block in blocks() if block.on_a_cluster and block.page != "install.md"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the directory in which commands run."""
    return tmp_path


@pytest.fixture(scope="module")
def demo() -> Iterator[int]:
    """Run a demo and return its port."""
    if shutil.which("jq") is None or shutil.which("curl") is None:
        pytest.skip("needs curl and jq: apt-get install curl jq")
    [port] = free_ports(1)
    data = Path(tempfile.mkdtemp(prefix="gpufleet-e2e-demo-"))
    data.chmod(0o711)  # PostgreSQL's user must reach the database in it
    command = [sys.executable, "-m", "gpufleet", "demo", "--days", "1", "--port", str(port)]
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--debug", "--data", str(data / "data")],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "GPUFLEET_ACCOUNTING_SNAPSHOT_PERIOD": "20"},  # instead of five minutes
        )
    try:
        Cluster.wait_for("demo", lambda: is_healthy(f"http://127.0.0.1:{port}/readyz"), timeout=180)
        latest = f"http://127.0.0.1:{port}/api/v1/gpu-aggregation/snapshots/latest"
        Cluster.wait_for("the demo's history", lambda: is_healthy(latest), timeout=400)
        yield port
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(data)


@pytest.mark.parametrize("block", DEMO, ids=str)
def test_commands_for_the_demo_work_as_written(
    block: Block, demo: int, folder: Path, observations: Observations
) -> None:
    output = run(block, folder, {"localhost:8080": demo}, dict(os.environ))
    found = documents_in(output)
    printed = [
        line for line in block.commands if line.startswith("curl") and not re.search(r"[|>]|-o ", line)
    ]
    assert len([each for each in found if isinstance(each, dict)]) >= len(printed)
    for document in found:
        assert_success(document)
    for line in block.commands:
        if "> " in line:
            written = (folder / line.rpartition("> ")[2]).read_text()
            if line.endswith(".csv"):
                assert len(written.splitlines()) > 1
            else:
                assert_success(json.loads(written))
    observations.add(
        f"docs/{block.page}, block {block.number}", f"{len(block.commands)} commands, {len(found)} responses"
    )


def test_the_helm_commands_of_the_install_page_work_in_order(
    cluster: Cluster, observations: Observations
) -> None:
    """Test only helm; `journeys` and `test_upgrade.py` also run the pods."""
    lines = [line for block in blocks() if block.page == "install.md" for line in block.commands]
    first, second = [line for line in lines if line.startswith("helm install gpu-scheduler")]
    try:
        for line in lines:
            if line == second:
                cluster.helm("uninstall", "gpu-scheduler", namespace="default")
            output = run(Block("install.md", 0, line), ROOT, {}, cluster.commands.environment())
            secret = "a token" if "create token" in line else ""
            observations.add(" ".join(line.split()), secret or next(iter(output.splitlines()), ""))
        assert "scheduler.image.tag=v0.2.0" in second
        assert "deployed" not in cluster.helm("list", "-A", "-q")
    finally:
        for chart in ("gpu-scheduler", "gpufleet"):
            if chart in cluster.helm("list", "-q", namespace="default").split():
                Release(cluster, chart, "default").uninstall()
        delete_crds(cluster)
    assert first


@pytest.fixture(scope="module")
def system(cluster: Cluster, shared_fake_nodes: FakeNodes) -> Iterator[System]:
    """Install both charts into the namespace `default`, with a claim, its pod and a manually created lease."""
    shared_fake_nodes.problems.clear()
    shared_fake_nodes.add("node-a")
    users = Users(cluster, shared_fake_nodes, "default")
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    try:
        with System(cluster, shared_fake_nodes, {"node-a": switched(8)}, namespace="default") as system:
            users.claim("my-claim", 2, policy="preferIds", preferIds=[2, 3])
            users.pod("train", "my-claim")
            users.running("train")
            cluster.wait_for("the claim's status", lambda: users.status("my-claim").get("phase") == "Bound")
            cluster.wait_for("a scrape", lambda: system.prometheus.query("nvidia_gpu_utilization_percent"))
            by_hand = {"metadata": {"name": "gpu-node-a-0"}, "spec": {"holderIdentity": "abc-123"}}
            cluster.api.create(leases, by_hand)
            try:
                yield system
            finally:
                cluster.kubectl("delete", "lease", "gpu-node-a-0", "--ignore-not-found")
                users.delete("train")
                cluster.wait_for("free GPUs", lambda: not system.leases())
    finally:
        shared_fake_nodes.remove("node-a")
    assert shared_fake_nodes.problems == []


EXPECTED = {
    "kubectl get gclaim": "my-claim",
    "kubectl get gpuclaim": "my-claim",
    "kubectl describe gpuclaim my-claim": "Count:",
    "kubectl get gpuclaim my-claim -o jsonpath='{.status}'": '"phase":"Bound"',
    "kubectl get gns": "node-a",
    "kubectl get gpunodestatus": "node-a",
    "kubectl get gns node-a -o yaml": "nodeName: node-a",
    "kubectl get leases | grep gpu-": "gpu-node-a-2",
    "kubectl get gclaim -w": "my-claim",
    "kubectl delete lease gpu-node-a-0": 'lease.coordination.k8s.io "gpu-node-a-0" deleted',
    "kubectl get pods -l app.kubernetes.io/component=agent": "gpu-scheduler-agent",
}
"""Text that the output of a command must contain."""


@pytest.mark.parametrize("block", KUBECTL, ids=str)
def test_commands_for_a_cluster_work_as_written(
    block: Block, system: System, folder: Path, observations: Observations
) -> None:
    port = int(system.prometheus.url.rpartition(":")[2])
    for line in block.commands:
        one = Block(block.page, block.number, line)
        output = run(one, folder, {"prometheus:9090": port}, system.cluster.commands.environment())
        if line.startswith("curl"):
            found = json.loads(output)
            assert (found["status"], bool(found["data"]["result"])) == ("success", True)
        else:
            assert EXPECTED[line] in output
        observations.add(line, output.splitlines()[-1][:60] if output else "")


def run(block: Block, folder: Path, ports: dict[str, int], environment: dict[str, str]) -> str:
    """Run a block with bash, which stops at the first error, and return its output."""
    home = folder if folder != ROOT else Path(environment["HELM_CACHE_HOME"]).parent
    home.mkdir(parents=True, exist_ok=True)
    lines = [f'connect-to = "{place}:127.0.0.1:{port}"' for place, port in ports.items()]
    (home / ".curlrc").write_text(
        "\n".join([*lines, "silent", "show-error", "fail-with-body", "max-time = 60"])
    )
    watches = block.commands[-1].endswith(" -w")
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env={**environment, "CURL_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=5 if watches else 120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT if watches else signal.SIGKILL)
        out, err = process.communicate(timeout=30)
        assert watches, f"{block.text}\n{out}\n{err}"
        return out
    assert process.returncode == 0, f"{block.text}\n{out}\n{err}"
    return out


def documents_in(text: str) -> list[Any]:
    """Return the JSON documents in `text`, one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def assert_success(document: Any) -> None:
    """Check for one of the three success envelopes; other documents come from /debug/vars or jq."""
    assert isinstance(document, dict)
    if "success" in document:
        assert document["success"] is True
        assert document["error"] is None
    elif "code" in document:
        assert document["message"] == "success"
        assert document["code"] == 200 or (document["code"] == 0 and document["traceId"])
    else:
        assert document
        return
    assert document["data"] is not None
