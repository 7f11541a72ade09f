"""Read the server's address and our credentials from a kubeconfig or a pod's service account.

This module only collects values. `credentials` and `tls` use them, again and again, since tokens
expire and certificates rotate. Several kubeconfig files (`a:b`) are merged as kubectl does: the
first definition wins, relative paths are relative to their file, and missing or empty files are
ignored if there are several.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from yarl import URL

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import KubernetesSettings

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ExecPlugin:
    """A command that prints credentials (client.authentication.k8s.io)."""

    command: str
    api_version: Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster_info: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Connection:
    """One API server and one identity; values that are a `Path` are read again when the file changes."""

    server: str
    namespace: str = "default"
    ca: Path | bytes | None = None
    insecure: bool = False
    tls_server_name: str = ""
    client_certificate: Path | bytes | None = None
    client_key: Path | bytes | None = None
    token: Path | str | None = None
    username: str = ""
    password: str = ""
    exec_plugin: ExecPlugin | None = None
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()
    proxy: str = ""

    def __repr__(self) -> str:
        return f"Connection({self.server!r})"


def connection_from_settings(settings: KubernetesSettings) -> Connection:
    """Return the connection that the settings describe."""
    return load_connection(str(settings.kubeconfig or ""), settings.context)


def load_connection(
    kubeconfig: str = "",
    context: str = "",
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Connection:
    """Use `kubeconfig` if given, else the service account of this pod, else ~/.kube/config."""
    if kubeconfig:
        return from_kubeconfig([Path(part) for part in kubeconfig.split(os.pathsep) if part], context)
    if "KUBERNETES_SERVICE_HOST" in environ and not context:
        return in_cluster(environ, service_account)
    home = Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"
    if home.is_file():
        return from_kubeconfig([home], context)
    raise SettingsError(
        "no Kubernetes API configured: give --kubeconfig FILE or set KUBECONFIG "
        f"(this process does not run in a pod, and {home} does not exist)"
    )


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Connection:
    """Return the connection of this pod's service account."""
    token, namespace = service_account / "token", service_account / "namespace"
    if not token.is_file():
        raise SettingsError(
            f"this pod has no service account token at {token}: set automountServiceAccountToken: true, "
            "or give --kubeconfig FILE"
        )
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Connection(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        ca=service_account / "ca.crt",
        token=token,
    )


def from_kubeconfig(files: list[Path], context: str = "") -> Connection:
    """Return the connection of `context` (the current one if empty) in the kubeconfig `files`."""
    config = _merged(files)
    names = " and ".join(str(file) for file in files)
    context = context or config.current
    if not context:
        raise SettingsError(f"{names} has no current-context: name one with --context ({config.known()})")
    if context not in config.contexts:
        raise SettingsError(f"{names} has no context {context!r}; it has: {config.known()}")
    chosen, _ = config.contexts[context]
    try:
        cluster, cluster_folder = config.clusters[chosen["cluster"]]
        server = str(cluster["server"])
    except KeyError as missing:
        raise SettingsError(
            f"{names}: context {context!r} has no cluster with a server ({missing})"
        ) from None
    user, user_folder = config.users.get(str(chosen.get("user", "")), ({}, Path()))
    try:
        return _connection(server, chosen, _Entry(cluster, cluster_folder), _Entry(user, user_folder))
    except KeyError as missing:
        raise SettingsError(f"{names}: context {context!r}: its exec plugin has no {missing}") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"{names}: context {context!r}: {error}") from None


@dataclass(frozen=True)
class _Entry:
    fields: Mapping[str, Any]
    folder: Path

    def text(self, name: str) -> str:
        return str(self.fields.get(name) or "")

    def file_or_data(self, name: str) -> Path | bytes | None:
        if data := self.text(f"{name}-data"):
            # Some tools wrap the text in lines of 64 characters.
            return base64.b64decode("".join(data.split()), validate=True)
        return self.folder / self.text(name) if self.text(name) else None


def _connection(server: str, context: Mapping[str, Any], cluster: _Entry, user: _Entry) -> Connection:
    token: Path | str | None = user.text("token") or None
    if token_file := user.text("tokenFile"):
        token = user.folder / token_file
    url = URL(server)  # may contain credentials, which messages must not show
    return Connection(
        server=str(url.with_user(None)).rstrip("/") if url.user else server.rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        ca=cluster.file_or_data("certificate-authority"),
        insecure=bool(cluster.fields.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.text("tls-server-name"),
        client_certificate=user.file_or_data("client-certificate"),
        client_key=user.file_or_data("client-key"),
        token=token,
        username=user.text("username") or url.user or "",
        password=user.text("password") or url.password or "",
        exec_plugin=_exec_plugin(user, server, cluster),
        impersonate=user.text("as"),
        impersonate_groups=tuple(user.fields.get("as-groups") or ()),
        proxy=cluster.text("proxy-url"),
    )


def _exec_plugin(user: _Entry, server: str, cluster: _Entry) -> ExecPlugin | None:
    given = user.fields.get("exec")
    if not given:
        if "auth-provider" in user.fields:
            raise ValueError("Kubernetes no longer supports auth-provider; use an exec plugin")
        return None
    version = given.get("apiVersion", "")
    if version not in ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"):
        raise ValueError(
            f"exec plugin with apiVersion {version!r}: only client.authentication.k8s.io/v1 and v1beta1 are supported"
        )
    command = str(given["command"])
    if given.get("interactiveMode") == "Always":
        raise ValueError(f"exec plugin {command} needs a terminal (interactiveMode: Always)")
    if os.sep in command:
        command = str(user.folder / command)
    info = None
    if given.get("provideClusterInfo"):
        info = {"server": server, "config": None, **_cluster_info(cluster)}
    return ExecPlugin(
        command=command,
        api_version=version,
        args=tuple(str(arg) for arg in given.get("args") or ()),
        env=tuple((str(item["name"]), str(item["value"])) for item in given.get("env") or ()),
        install_hint=str(given.get("installHint") or ""),
        cluster_info=info,
    )


def _cluster_info(cluster: _Entry) -> dict[str, Any]:
    ca = cluster.file_or_data("certificate-authority")
    data = ca.read_bytes() if isinstance(ca, Path) else ca
    extensions = {item["name"]: item.get("extension") for item in cluster.fields.get("extensions") or ()}
    info = {
        "certificate-authority-data": base64.b64encode(data).decode() if data else None,
        "insecure-skip-tls-verify": cluster.fields.get("insecure-skip-tls-verify"),
        "tls-server-name": cluster.fields.get("tls-server-name"),
        "proxy-url": cluster.fields.get("proxy-url"),
        "config": extensions.get("client.authentication.k8s.io/exec"),
    }
    return {name: value for name, value in info.items() if value is not None}


_Named = dict[str, tuple[Mapping[str, Any], Path]]


@dataclass
class _Kubeconfig:
    current: str
    contexts: _Named
    clusters: _Named
    users: _Named

    def known(self) -> str:
        return ", ".join(sorted(self.contexts)) or "none"


def _merged(files: list[Path]) -> _Kubeconfig:
    config = _Kubeconfig("", {}, {}, {})
    for file in _present(files):
        content = _read(file)
        config.current = config.current or str(content.get("current-context") or "")
        for plural, singular, table in (
            ("contexts", "context", config.contexts),
            ("clusters", "cluster", config.clusters),
            ("users", "user", config.users),
        ):
            for entry in content.get(plural) or ():
                if not isinstance(entry, dict) or not isinstance(entry.get(singular) or {}, dict):
                    raise SettingsError(
                        f"the kubeconfig {file}: {plural} has an entry that is not a {singular}"
                    )
                table.setdefault(str(entry.get("name")), (entry.get(singular) or {}, file.parent.absolute()))
    return config


def _present(files: list[Path]) -> list[Path]:
    """Return the files that exist and are not empty; a single file must exist."""
    found = [file for file in files if file.exists() and file.stat().st_size]
    return found or files[:1]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise SettingsError(f"can't read the kubeconfig {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"the kubeconfig {file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"the kubeconfig {file} is empty or not a mapping")
    return content
