"""Connections from kubeconfigs and from a pod's service account."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.errors import SettingsError
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.client.connection import Connection, ExecPlugin, from_kubeconfig, load_connection
from gpufleet.runtime.settings import KubernetesSettings


def config(**parts: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main", "namespace": "team-a"}}],
        "clusters": [{"name": "main", "cluster": {"server": "https://main:6443/"}}],
        "users": [{"name": "main", "user": {"token": "secret-token"}}],
        **parts,
    }


def write(file: Path, content: Any) -> Path:
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def user(**fields: Any) -> list[Any]:
    return [{"name": "main", "user": fields}]


def test_the_current_context_is_used_unless_another_is_named(tmp_path: Path) -> None:
    contexts = [
        {"name": "main", "context": {"cluster": "main", "user": "main", "namespace": "team-a"}},
        {"name": "other", "context": {"cluster": "main"}},
    ]
    file = write(tmp_path / "config", config(contexts=contexts))
    assert from_kubeconfig([file]) == Connection(
        "https://main:6443", namespace="team-a", token="secret-token"
    )
    assert from_kubeconfig([file], "other") == Connection("https://main:6443")


def test_credentials_in_the_address_are_used_but_not_shown(tmp_path: Path) -> None:
    server = {"name": "main", "cluster": {"server": "http://ann:pass%2Fword@main:8080/"}}
    file = write(tmp_path / "config", config(clusters=[server], users=user(token="secret-token")))
    assert from_kubeconfig([file]) == Connection(
        "http://main:8080",
        namespace="team-a",
        token="secret-token",
        username="ann",
        password="pass/word",
    )


def test_files_are_relative_to_the_kubeconfig_and_data_wins_over_files(tmp_path: Path) -> None:
    cluster = {
        "server": "https://main",
        "certificate-authority": "pki/ca.crt",
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
    }
    given = {
        "client-certificate": "/etc/client.crt",
        "client-key": "ignored",
        "client-key-data": base64.b64encode(b"KEY").decode(),
        "tokenFile": "token",
        "token": "ignored too",
        "as": "jane",
        "as-groups": ["dev"],
    }
    file = write(
        tmp_path / "config", config(clusters=[{"name": "main", "cluster": cluster}], users=user(**given))
    )
    assert from_kubeconfig([file]) == Connection(
        "https://main",
        namespace="team-a",
        ca=tmp_path / "pki" / "ca.crt",
        tls_server_name="kubernetes",
        client_certificate=Path("/etc/client.crt"),
        client_key=b"KEY",
        token=tmp_path / "token",
        impersonate="jane",
        impersonate_groups=("dev",),
        proxy="http://proxy:3128",
    )


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"clusters": [{"name": "main", "cluster": {"server": "https://first"}}]})
    two = write(tmp_path / "two", config())
    connection = load_connection(f"{one}:{two}", environ={})
    assert (connection.server, connection.token) == ("https://first", "secret-token")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_an_exec_plugin_keeps_all_its_settings(tmp_path: Path, version: Any) -> None:
    plugin = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./bin/login",
        "args": ["--cluster", "main"],
        "env": [{"name": "PROFILE", "value": "dev"}],
        "installHint": "see the wiki",
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
    }
    file = write(tmp_path / "config", config(users=user(exec=plugin)))
    assert from_kubeconfig([file]).exec_plugin == ExecPlugin(
        command=str(tmp_path / "bin" / "login"),
        api_version=f"client.authentication.k8s.io/{version}",  # type: ignore[arg-type]
        args=("--cluster", "main"),
        env=(("PROFILE", "dev"),),
        install_hint="see the wiki",
        cluster_info={"server": "https://main:6443/", "config": None},
    )


@pytest.mark.parametrize(
    ("content", "context", "message"),
    [
        (config(), "nope", r"no context 'nope'; it has: main"),
        (config(**{"current-context": ""}), "", r"no current-context: name one with --context \(main\)"),
        (config(clusters=[]), "", "has no cluster with a server"),
        (config(users=user(**{"client-certificate-data": "***"})), "", "context 'main'"),
        (
            config(users=user(exec={"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"})),
            "",
            "only client.authentication.k8s.io/v1 and v1beta1 are supported",
        ),
        (
            config(
                users=user(
                    exec={
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "interactiveMode": "Always",
                    }
                )
            ),
            "",
            "needs a terminal",
        ),
        (config(users=user(**{"auth-provider": {"name": "gcp"}})), "", "use an exec plugin"),
        (config(users=user(exec={"apiVersion": "client.authentication.k8s.io/v1"})), "", "has no 'command'"),
        (
            config(
                clusters=[
                    {"name": "main", "cluster": {"server": "https://a", "certificate-authority": "none"}}
                ],
                users=user(
                    exec={
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "provideClusterInfo": True,
                    }
                ),
            ),
            "",
            "No such file",
        ),
        (config(contexts=["main"]), "", "contexts has an entry that is not a context"),
        ("[", "", "is not YAML"),
        ("", "", "is empty"),
    ],
)
def test_an_invalid_kubeconfig_is_explained(tmp_path: Path, content: Any, context: str, message: str) -> None:
    file = write(tmp_path / "config", content)
    with pytest.raises(SettingsError, match=message):
        from_kubeconfig([file], context)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"can't read the kubeconfig .*nowhere: No such file"):
        load_connection(str(tmp_path / "nowhere"))


def test_missing_and_empty_files_are_ignored_if_there_are_several(tmp_path: Path) -> None:
    there, empty = write(tmp_path / "config", config()), write(tmp_path / "empty", "")
    files = f"{tmp_path / 'nowhere'}:{empty}:{there}"
    assert load_connection(files).server == "https://main:6443"
    with pytest.raises(SettingsError, match=r"can't read the kubeconfig .*nowhere: No such file"):
        load_connection(f"{tmp_path / 'nowhere'}:{tmp_path / 'neither'}")


def test_certificates_may_be_wrapped_in_lines(tmp_path: Path) -> None:
    text = base64.encodebytes(b"CERTIFICATE" * 20).decode()
    cluster = {"server": "https://main", "certificate-authority-data": text}
    file = write(tmp_path / "config", config(clusters=[{"name": "main", "cluster": cluster}]))
    assert from_kubeconfig([file]).ca == b"CERTIFICATE" * 20


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "HOME": "/none"}
    with pytest.raises(SettingsError, match="automountServiceAccountToken"):
        load_connection(environ=environ, service_account=tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("gpu-system\n")
    assert load_connection(environ=environ, service_account=tmp_path) == Connection(
        "https://[fd00::1]:6443", namespace="gpu-system", ca=tmp_path / "ca.crt", token=tmp_path / "token"
    )


def test_outside_of_a_cluster_the_users_kubeconfig_is_used(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="give --kubeconfig FILE or set KUBECONFIG"):
        load_connection(environ={"HOME": str(tmp_path)})
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", config())
    assert load_connection(environ={"HOME": str(tmp_path)}).server == "https://main:6443"


def test_a_connection_never_shows_its_secrets() -> None:
    assert "hidden" not in repr(Connection("https://main", token="hidden", password="hidden"))


async def test_the_settings_name_the_api(tmp_path: Path) -> None:
    file = write(tmp_path / "config", config())
    async with KubeClient.from_settings(KubernetesSettings(kubeconfig=file)) as client:
        assert client.connection.server == "https://main:6443"
