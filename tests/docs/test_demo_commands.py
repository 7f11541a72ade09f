"""Run the commands of the pages on a demo that was started in an empty directory, as the tutorial says."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.charts.rendering import helm
from tests.docs.pages import RENDERED, ROOT, WHOLE, blocks, is_run_on_the_demo, pages
from tests.waiting import block_until

pytestmark = pytest.mark.long

DATA = "gpufleet-data/demo/32x8-seed1"
ADDRESSES = r"(127\.0\.0\.1|localhost):8080"
MAY_EXIT_WITH_1 = r"gpufleet (explain|fit)|kubectl .*\| *grep"
"""`explain` and `fit` exit with 1 for what waits or does not fit."""


@dataclass(frozen=True)
class Place:
    """The directory in which the demo runs, and its address."""

    folder: Path
    address: str

    def run(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Run a script with bash up to the first error; addresses of the pages become that of the demo."""
        for tool in ("curl", "kubectl"):
            if shutil.which(tool) is None:
                pytest.skip(f"needs {tool}")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GPUFLEET_SERVER": self.address,
            "KUBECONFIG": str(self.folder / DATA / "kubeconfig"),
            "SERVER": self.address,
            "TOKEN": "none",
            "CURL_HOME": str(self.folder),
        }
        return subprocess.run(
            [
                "bash",
                "-eu",
                "-c",
                re.sub(ADDRESSES, self.address.removeprefix("http://"), script),
            ],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Start the demo in an empty directory and wait until its history is complete."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-docs-"))
    folder.chmod(0o711)  # PostgreSQL's user must reach the database in it
    (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 60\n")
    command = [sys.executable, "-m", "gpufleet", "demo", "--port", "0", "--days", "1"]
    with (folder / ".demo.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:

        def address() -> str:
            assert process.poll() is None, (folder / ".demo.log").read_text()
            found = re.search(r"http://127\.0\.0\.1:\d+", (folder / ".demo.log").read_text())
            return found[0] if found and (folder / DATA / "demo.json").exists() else ""

        yield Place(folder, block_until(address, 240))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder)


@pytest.mark.parametrize("page", WHOLE)
def test_the_commands_of_a_page_work_in_order(place: Place, page: str) -> None:
    script = "\n".join(block.text for block in blocks(page) if block.language == "bash")
    done = place.run(script)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_tutorial_reaches_what_it_promises(place: Place) -> None:
    nodes = json.loads(place.run("gpufleet get nodes -o json").stdout)["items"]
    assert len(nodes) == 32
    assert {node["gpuTotal"] for node in nodes} == {8}
    assert "PROBLEM" in place.run("gpufleet get nodes -o wide").stdout
    page = pages()["docs/tutorial.md"]
    apply, show = re.findall(r"```bash\n(export KUBECONFIG.*?)```\n.*?```bash\n(.*?)```", page, re.DOTALL)[0]
    done = place.run(apply + show)
    assert re.search(r"trial +Bound", done.stdout), done.stdout + done.stderr
    allocated = re.search(r"([\w-]+):(\d+),(\d+)", done.stdout)
    assert allocated, done.stdout
    assert f"gpu-{allocated[1]}-" in place.run("kubectl get leases").stdout
    large = re.findall(r"```bash\n(kubectl apply -f - .*?)```", page, re.DOTALL)[0]
    explained = place.run(large)
    assert "fewer than 9 GPUs" in explained.stdout
    place.run("kubectl delete pod trial large; kubectl delete gclaim trial large")
    report = place.run("gpufleet report --group-by label:team").stdout
    assert "nlp" in report


def _single_commands() -> list[tuple[str, str]]:
    found = [
        (page, command)
        for page in pages()
        for block in blocks(page)
        for command in block.commands()
        if is_run_on_the_demo(block, command)
    ]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def names(place: Place) -> dict[str, str]:
    """Names of the demo for the placeholders of the pages."""
    queue = re.search(r"```yaml\n(apiVersion[^`]*kind: GpuQueue[^`]*)```", pages()["docs/how-to.md"])
    assert queue is not None
    place.run(f"kubectl apply -f {DATA}/trial.yaml; kubectl apply -f - <<'EOF'\n{queue[1]}EOF")
    node = place.run("kubectl get gns -o name").stdout.split()[0].partition("/")[2]
    return {
        "NODE": node,
        "QUEUE": "nlp",
        "POD": "trial",
        "CLAIM": "trial",
        "LEASE_NAMESPACE": "default",
        "NAMESPACE": "default",
    }


@pytest.mark.parametrize(("page", "command"), _single_commands())
def test_a_command_works_on_the_demo(place: Place, names: dict[str, str], page: str, command: str) -> None:
    for name, value in names.items():
        command = re.sub(rf"\b{name}\b", value, command)
    source = command if "<(" in command else command.partition(" | ")[0]
    source = source.replace("examples/trace/", f"{ROOT}/examples/trace/")
    done = place.run(source)
    if re.match(MAY_EXIT_WITH_1, source) and done.returncode == 1:
        assert done.stdout or "No node has" in done.stderr, done.stderr
    else:
        assert done.returncode == 0, f"{page}: {source}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"


def _rendered() -> list[str]:
    return [
        command
        for page in pages()
        for block in blocks(page)
        for command in block.commands()
        if re.match(RENDERED, command)
    ]


@pytest.mark.parametrize("command", dict.fromkeys(_rendered()))
def test_a_helm_command_renders_the_chart(command: str) -> None:
    words = shlex.split(command)[2:]
    done = helm("template", *(word for word in words if word != "--reuse-values"))
    assert done.returncode == 0, done.stderr
