"""Build the images, make a whole cluster, install both charts and follow a claim to a container with its GPUs.

Nothing is simulated but the GPUs: character devices stand for them, the NVML shim for their driver, and
`e2e/node/vendor_runtime.py` for the vendor's container runtime. `make e2e-cluster` runs it.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import agreement
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Unavailable
from e2e.cluster.binaries import Binaries
from e2e.conftest import progress_printer
from e2e.image import Images
from e2e.image.images import ROLES
from e2e.machine import Machine, programs
from e2e.machine.machine import ADDRESS, BRIDGE, RANGE
from e2e.machine.namespace import own_network
from e2e.node.pods import container, pod
from e2e.node.programs import Programs
from e2e.system import Observations
from e2e.system.database import Database
from e2e.system.release import Release
from gpufleet.kubernetes.annotations import CLAIM

pytestmark = pytest.mark.whole_cluster

KUBE_SCHEDULER = "localhost/kube-scheduler"
SYSTEM, SERVER, USERS = "gpu-system", "gpufleet", "users"
LARGEST_AGENT = 200_000_000
Json = dict[str, Any]


@pytest.fixture(scope="module")
def images(pytestconfig: pytest.Config, control_plane: Binaries) -> Images:
    """Build the images of all roles, and one of kube-scheduler, before the network is cut off."""
    try:
        images = Images(progress_printer(pytestconfig))
        for role in ROLES:
            images.build(role)
        images.single(f"{KUBE_SCHEDULER}:v{control_plane.version}", control_plane.scheduler)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return images


@pytest.fixture
def machine(
    images: Images,
    control_plane: Binaries,
    node_programs: Programs,
    pytestconfig: pytest.Config,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Machine]:
    """Run the cluster and import the images; keep the logs of a failed run."""
    try:
        network = programs.find(progress_printer(pytestconfig))
    except Unavailable as reason:
        pytest.skip(f"no pod network: {reason}")
    names = [f"localhost/gpufleet-{role}:e2e" for role in ROLES] + [
        f"{KUBE_SCHEDULER}:v{control_plane.version}"
    ]
    archives = [tmp_path / f"{number}.tar" for number in range(len(names))]
    for name, archive in zip(names, archives, strict=True):
        images.save(name, archive)
    with own_network(BRIDGE, f"{ADDRESS}/24"), Machine(control_plane, node_programs, network) as machine:
        for archive in archives:
            machine.node.import_image(archive)
            archive.unlink()
        yield machine
        if request.session.testsfailed:
            print(_state(machine))


def test_the_images_hold_what_their_role_needs_and_no_more(
    images: Images, observations: Observations
) -> None:
    for role in ROLES:
        name = f"localhost/gpufleet-{role}:e2e"
        size = images.size(name)
        observations.add(f"image of the {role}", f"{size / 1e6:.0f} MB")
        assert role != "agent" or size < LARGEST_AGENT
        files = images.files(name)
        for tool in (
            r"/pip/__init__\.py$",
            r"/bin/(pip|gcc|cc|make|npm|node)[\d.]*$",
            r"/hatchling/",
            r"/kubelite/",
        ):
            assert [file for file in files if re.search(tool, file)] == []
        assert images.run(name, "gpufleet", "--version").startswith("gpufleet ")


def test_a_claim_gets_its_gpus_on_a_cluster_with_both_charts(
    machine: Machine, observations: Observations, tmp_path: Path
) -> None:
    cluster, began = machine.cluster, time.monotonic()
    shim = _driver(machine)
    scheduler, server = Release(cluster, "gpu-scheduler", SYSTEM), Release(cluster, "gpufleet", SERVER)
    for namespace in (SYSTEM, SERVER, USERS):
        cluster.create_namespace(namespace)
    with Database(cluster.directory, ADDRESS, RANGE) as database:
        scheduler.install(_scheduler_values(machine, shim))
        server.install(_server_values(database.url))
        _rolled_out(machine)
        observations.add("helm install until all pods are ready", f"{time.monotonic() - began:.0f} s")
        for release in (scheduler, server):
            cluster.helm("test", release.name, namespace=release.namespace, timeout=120)

        _claim(machine, "two", 2)
        began = time.monotonic()
        _pod(machine, "train", "two")
        gpus = _running(machine, "train")
        observations.add("kubectl apply until the container runs", f"{time.monotonic() - began:.1f} s")
        access = machine.node.access(USERS, "train")
        assert access.nodes == access.opens == gpus
        assert access.denied == {gpu.index for gpu in machine.node.gpus} - gpus
        _claim(machine, "rest", 6)
        _pod(machine, "other", "rest")
        assert _running(machine, "other") == {gpu.index for gpu in machine.node.gpus} - gpus
        assert machine.node.access(USERS, "other").opens == access.denied

        site = _site(machine)
        for gpu in range(8):
            shim.set(f"{gpu}.utilization", 55)
        cluster.wait_for("readings of the agent", lambda: _utilization(site) == [55.0] * 8, timeout=120)
        cluster.wait_for(
            "both workloads in the books", lambda: _holders(site) == {"train": 2, "other": 6}, timeout=120
        )
        overview = agreement.check_live(site)
        observations.add(
            "GPUs, allocated, in the overview", f"{overview['totalGpus']}, {overview['allocatedGpus']}"
        )

        cluster.kubectl("delete", "pod", "other", namespace=USERS)
        cluster.wait_for("free leases", lambda: len(_leases(machine)) == 2, timeout=60)
        _check_pods(machine)

        began = time.monotonic()
        server.upgrade(_server_values(database.url) | {"log": {"level": "warning"}})
        scheduler.upgrade(_scheduler_values(machine, shim) | {"log": {"level": "warning"}})
        _rolled_out(machine)
        observations.add("helm upgrade until all pods are ready", f"{time.monotonic() - began:.0f} s")
        _pod(machine, "again", "two")
        neighbours = _running(machine, "again")
        assert machine.node.access(USERS, "again").opens == neighbours
        # Every process of the charts was replaced under the first pod.
        assert machine.node.access(USERS, "train") == access
        assert not neighbours & gpus
        for name in ("train", "again"):
            cluster.kubectl("delete", "pod", name, namespace=USERS)
        cluster.wait_for("free leases", lambda: not _leases(machine), timeout=60)
        _check_pods(machine)

        for release in (server, scheduler):
            release.uninstall()
        cluster.wait_for(
            "the end of all pods", lambda: not _pods(machine, SYSTEM) + _pods(machine, SERVER), timeout=120
        )
        assert _left(server) + _left(scheduler) == []


def _driver(machine: Machine) -> NvmlShim:
    """Make the directory that the agent mounts: a driver whose GPUs are the character devices of the node."""
    folder = machine.cluster.directory / "driver"
    folder.mkdir()
    shutil.copy(build_shim(), folder)
    shim = NvmlShim(folder, folder)
    uuids = {f"{gpu.index}.uuid": gpu.uuid for gpu in machine.node.gpus}
    shim.describe({**switched(len(machine.node.gpus)), **uuids})
    return shim


def _scheduler_values(machine: Machine, shim: NvmlShim) -> Json:
    image = {"tag": "e2e", "pullPolicy": "Never"}
    return {
        "image": {"repository": "localhost/gpufleet-scheduler", **image},
        "kubeScheduler": {"image": {"repository": KUBE_SCHEDULER}},
        "webhook": {"runtimeClassName": "nvidia"},
        "agent": {
            "image": {"repository": "localhost/gpufleet-agent"},
            "runtimeClassName": "nvidia",
            "driverLibraries": str(shim.path.parent),
            "period": "1s",
            "env": [{"name": "NVML_SHIM_STATE", "value": f"/host/driver/{shim.path.name}"}],
        },
    }


def _server_values(database: str) -> Json:
    return {
        "image": {"repository": "localhost/gpufleet-server", "tag": "e2e", "pullPolicy": "Never"},
        "database": {"url": database},
        "kubernetes": {"leaseNamespace": SYSTEM},
        "env": [{"name": "GPUFLEET_METRICS_REFRESH", "value": "2s"}],
    }


def _rolled_out(machine: Machine) -> None:
    for namespace in (SYSTEM, SERVER):
        kinds = "deployments,daemonsets"
        for each in machine.cluster.kubectl("get", kinds, "-o", "name", namespace=namespace).split():
            machine.cluster.kubectl(
                "rollout", "status", each, "--timeout=300s", namespace=namespace, timeout=310
            )


def _claim(machine: Machine, name: str, count: int) -> None:
    spec = {"devices": {"count": count}}
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": name}, "spec": spec}
    machine.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body), namespace=USERS)


def _pod(machine: Machine, name: str, claim: str) -> None:
    body = pod(name, container(), annotations={CLAIM: claim}, hostNetwork=False)
    machine.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body), namespace=USERS)


def _running(machine: Machine, name: str) -> frozenset[int]:
    """Wait until the pod runs, and return the GPUs that it was given."""
    path = f"/api/v1/namespaces/{USERS}/pods/{name}"
    machine.cluster.wait_for(
        f"running {name}",
        lambda: machine.cluster.api.get(path)["status"].get("phase") == "Running",
        timeout=120,
    )
    variables = machine.cluster.kubectl("exec", name, "--namespace", USERS, "--", "env")
    visible = re.search(r"^CUDA_VISIBLE_DEVICES=(\S+)$", variables, re.MULTILINE)
    assert visible, variables
    indices = {gpu.uuid: gpu.index for gpu in machine.node.gpus}
    return frozenset(indices[each] for each in visible[1].split(","))


def _site(machine: Machine) -> agreement.Site:
    """Return the server as a viewer reaches it, through its Service."""
    cluster = machine.cluster
    subject = f"--serviceaccount={SERVER}:default"
    cluster.kubectl(
        "create", "clusterrolebinding", "viewers", f"--clusterrole={SERVER}-gpufleet-viewer", subject
    )
    token = cluster.kubectl("create", "token", "default", namespace=SERVER).strip()
    url, headers = f"http://{machine.service(SERVER, 'gpufleet')}", {"Authorization": f"Bearer {token}"}
    [found] = httpx.get(f"{url}/api/clusters", headers=headers, timeout=30).json()["data"]
    return agreement.Site(url, headers, found["name"])


def _utilization(site: agreement.Site) -> list[float]:
    return [gpu["utilization"] for gpu in site.get("/api/v1/gpu/metrics")]


def _holders(site: agreement.Site) -> dict[str, int]:
    return {each["name"]: each["gpuAllocated"] for each in site.rows("/api/workloads", status="Running")}


def _leases(machine: Machine) -> list[str]:
    """Return the leases of GPUs; those of leader elections have other names."""
    found = machine.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases")["items"]
    return [name for each in found if (name := each["metadata"]["name"]).startswith("gpu-real")]


def _pods(machine: Machine, namespace: str) -> list[Json]:
    found: list[Json] = machine.cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def _check_pods(machine: Machine) -> None:
    """Fail for containers that were restarted, and for errors in their logs."""
    for namespace in (SYSTEM, SERVER):
        for each in _pods(machine, namespace):
            name = each["metadata"]["name"]
            for status in each["status"].get("containerStatuses", ()):
                assert status["restartCount"] == 0, f"{name} was restarted: {status}"
            log = machine.cluster.kubectl("logs", name, "--all-containers", namespace=namespace)
            assert errors_in(log) == [], f"log of {name}"


def errors_in(log: str) -> list[str]:
    """Return the lines of a log that report an error, in the formats of gpufleet and of kube-scheduler."""
    # kube-scheduler logs this about --allow-metric-labels-manifest in every cluster, also if it is not set.
    lines = [line for line in log.splitlines() if not line.endswith("The manifest file is empty, ignoring.")]
    return [line for line in lines if re.search(r'"level": ?"(error|critical)"|^E\d{4} |^Traceback', line)]


def _left(release: Release) -> list[str]:
    """Return the objects that are left; the keys of servers are kept on purpose."""
    return [each for each in release.remaining_objects() if not each.startswith("secret/")]


def _state(machine: Machine) -> str:
    """Describe all pods, for a failed run."""
    parts = [machine.cluster.kubectl("get", "pods,events", "--all-namespaces", "-o", "wide")]
    for namespace in (SYSTEM, SERVER, USERS):
        for each in _pods(machine, namespace):
            name = each["metadata"]["name"]
            try:
                log = machine.cluster.kubectl(
                    "logs", name, "--all-containers", "--tail=40", namespace=namespace
                )
            except Exception as error:
                log = str(error)
            parts.append(f"== {namespace}/{name}\n{log}")
    return "\n".join(parts)
