"""Fixtures of the end-to-end tests: a real control plane for each worker of the run, a namespace for each test.

If this machine has no control plane and can't get one, the tests that need it are skipped, and the summary says so.
With CI=true they fail instead.
If a test fails, the logs of the components during the test are shown with it, and all logs are kept in
`.gpufleet/e2e-logs`.
"""

import contextlib
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from e2e.cluster import Cluster, Unavailable, binaries
from e2e.fakenodes import FakeNodes
from e2e.node import Node, programs
from e2e.system.observations import Observations

_KEPT_LOGS = Path(".gpufleet") / "e2e-logs" / os.environ.get("PYTEST_XDIST_WORKER", "")
_NODE = pytest.StashKey[Node]()
_CLUSTER = pytest.StashKey[Cluster]()
_LOG_SIZES = pytest.StashKey[dict[str, int]]()
_OBSERVATIONS = pytest.StashKey[Observations]()
_NO_CONTROL_PLANE = "no control plane: "


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config) -> binaries.Binaries:
    """Return the programs of a control plane, found, built or downloaded. Without them, skip the test or fail it in CI."""
    try:
        return binaries.find(progress_printer(pytestconfig))
    except Unavailable as reason:
        skip_or_fail(f"{_NO_CONTROL_PLANE}{reason}")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it with CI=true: a run of CI that proves nothing must not pass."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(control_plane: binaries.Binaries, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run a control plane, shared by all tests of the worker."""
    with Cluster(control_plane) as cluster:
        request.config.stash[_CLUSTER] = cluster
        yield cluster
        if request.session.testsfailed:
            shutil.rmtree(_KEPT_LOGS, ignore_errors=True)
            shutil.copytree(cluster.logs, _KEPT_LOGS)


@pytest.fixture(scope="session")
def node_programs(pytestconfig: pytest.Config) -> programs.Programs:
    """Return the programs of a real node, found or built. Skip the test without them."""
    try:
        return programs.find(progress_printer(pytestconfig))
    except Unavailable as reason:
        pytest.skip(f"no real node: {reason}")


@pytest.fixture(scope="module")
def real_node(
    cluster: Cluster, node_programs: programs.Programs, request: pytest.FixtureRequest
) -> Iterator[Node]:
    """Run a real node for the tests of one module."""
    with Node(cluster, node_programs) as node:
        request.config.stash[_NODE] = node
        yield node
        del request.config.stash[_NODE]


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a namespace for the test and delete it afterwards."""
    prefix = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).removeprefix("test-")[:40].strip("-")
    name = f"{prefix}-{secrets.token_hex(3)}"
    cluster.create_namespace(name)
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def shared_fake_nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    """Run one simulation of fake nodes for all tests, so that pods left by a test still terminate."""
    with FakeNodes(cluster.admin) as nodes:
        yield nodes


@pytest.fixture
def fake_nodes(shared_fake_nodes: FakeNodes) -> Iterator[FakeNodes]:
    """Return fake nodes without any node; remove the nodes of the test afterwards."""
    shared_fake_nodes.problems.clear()
    yield shared_fake_nodes
    shared_fake_nodes.remove(*shared_fake_nodes.names)
    assert shared_fake_nodes.problems == []


@pytest.fixture
def observations(request: pytest.FixtureRequest) -> Observations:
    """Return a table of observations for the summary of the run."""
    observations = Observations(request.node.name.removeprefix("test_").replace("_", " "))
    request.node.stash[_OBSERVATIONS] = observations
    return observations


@pytest.fixture
def data() -> Iterator[Path]:
    """Return a data directory; not below `tmp_path`, which a run as root makes unreadable for PostgreSQL's user."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-e2e-data-"))
    folder.chmod(0o711)  # tests also use directories in it
    yield folder
    shutil.rmtree(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the components during the test to a failure."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    node = item.config.stash.get(_NODE, None)
    components = [*(cluster.components if cluster else ()), *(node.components if node else ())]
    if report.when == "setup" and cluster:
        item.stash[_LOG_SIZES] = {each.name: each.log_size for each in components}
    if report.when == "call" and (observations := item.stash.get(_OBSERVATIONS, None)):
        report.user_properties.append(("observations", [observations.title, *observations.table()]))
    if report.failed and cluster and "cluster" in getattr(item, "fixturenames", ()):
        sizes = item.stash.get(_LOG_SIZES, {})
        for component in components:
            if tail := component.tail(start=sizes.get(component.name, 0)):
                report.sections.append((f"log of {component.name}", tail))
    return report


class _ByInstallation(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps the tests of a file on one worker, and all journeys, which share an installation."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        # test_rbac.py reads the audit log of the journeys.
        return "journeys" if "/journeys/" in file or file.endswith("test_rbac.py") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Spread the tests over the workers."""
    return _ByInstallation(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the observations, and that there was no control plane."""
    reports = [each for group in terminalreporter.stats.values() for each in group]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "observations" and report.when == "call":
                for line in value:
                    terminalreporter.line(line)
    for report in terminalreporter.stats.get("skipped", ()):
        if _NO_CONTROL_PLANE in (text := str(report.longrepr)):
            reason = text.partition(_NO_CONTROL_PLANE)[2]
            terminalreporter.section("NO CONTROL PLANE", red=True, bold=True)
            terminalreporter.line(f"tests that need it were SKIPPED and prove nothing: {reason}", red=True)
            break
    if _KEPT_LOGS.exists() and terminalreporter.stats.get("failed"):
        terminalreporter.line(f"logs of the control plane: {_KEPT_LOGS}")


def progress_printer(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that prints despite capturing: a build takes minutes. A worker has only standard error."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    uncaptured = capture.global_and_fixture_disabled if capture else contextlib.nullcontext

    def print_line(line: str) -> None:
        with uncaptured():
            print(f"\n==> {line}", file=sys.stderr, flush=True)

    return print_line
