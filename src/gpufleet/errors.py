"""Every error that gpufleet raises on purpose, as one tree.

    GpufleetError
    ├── SettingsError          a setting has a wrong value; says which, from where, and what it takes
    ├── InvalidRequest         a caller asked for something that makes no sense (400)
    ├── NotFound               a thing that a caller named is not there (404)
    ├── Unavailable            something that we depend on does not answer; trying again may help (503)
    │   ├── StoreUnavailable
    │   ├── MetricsUnavailable
    │   ├── KubernetesUnavailable
    │   ├── DevicesUnavailable
    │   ├── SlurmUnavailable
    │   └── ContainersUnavailable
    └── Refused                we could, but must not (a second server on one data directory)

Adapters turn a library's exceptions into these, so that no caller catches a library's own.
"""


class GpufleetError(Exception):
    """The root: catching it catches everything that gpufleet raises on purpose."""


class SettingsError(GpufleetError):
    """A setting has a value that it can't have."""


class InvalidRequest(GpufleetError):
    """A caller's request makes no sense; the message names the parameter and what it takes."""


class NotFound(GpufleetError):
    """A thing that a caller named is not there."""


class OperationRefused(GpufleetError):
    """Doing it would harm somebody; the message says what to do instead."""


class Unavailable(GpufleetError):
    """Something outside this process does not answer now; a later try may succeed."""


class StoreUnavailable(Unavailable):
    """PostgreSQL does not answer."""


class MetricsUnavailable(Unavailable):
    """The metric source does not answer."""


class KubernetesUnavailable(Unavailable):
    """The Kubernetes API does not answer."""


class DevicesUnavailable(Unavailable):
    """The GPU driver of this machine is missing, refuses, or does not answer."""


class SlurmUnavailable(Unavailable):
    """Slurm's controller, its REST daemon or its commands do not answer, or not sensibly."""


class ContainersUnavailable(Unavailable):
    """The container engine (Docker, Podman) does not answer, or not sensibly."""


def why_unreachable(error: BaseException) -> str:
    """Why a connection did not come about, in the system's words and without those of the libraries between.

    aiohttp says "Cannot connect to host h:1 ssl:default [Connect call failed ('h', 1)]", which is "Connection
    refused".
    """
    # Here, because `gpufleet --help` has no use for them and takes its time from their import.
    import os
    import socket
    import ssl

    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {(getattr(cause, 'reason', None) or str(cause)).replace('_', ' ').lower()}"
    if isinstance(cause, socket.gaierror):
        return cause.strerror or str(cause)
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return str(error) or type(error).__name__
