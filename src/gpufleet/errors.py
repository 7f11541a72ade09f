"""The errors that gpufleet raises, as one tree.

    GpufleetError
    ├── SettingsError          a setting has a wrong value
    ├── InvalidRequest         a request is not valid (400)
    │   └── LimitExceeded      it would store more than a setting allows (413)
    ├── NotFound               an object does not exist (404)
    ├── Unavailable            a dependency does not answer; a retry may help (503)
    │   ├── StoreUnavailable
    │   ├── MetricsUnavailable
    │   ├── KubernetesUnavailable
    │   ├── DevicesUnavailable
    │   │   └── DriverMismatch
    │   ├── SlurmUnavailable
    │   ├── ContainersUnavailable
    │   ├── ServerUnavailable
    │   └── IdentityProviderUnavailable
    ├── OperationRefused       an operation would do harm, such as a second server on one data directory
    └── LeadershipLost         another server does this work now, so this write of it was refused

Adapters convert the exceptions of libraries to these.
"""


class GpufleetError(Exception):
    """The root of all errors of gpufleet."""


class SettingsError(GpufleetError):
    """A setting has a wrong value; the message names its source and what it takes."""


class InvalidRequest(GpufleetError):
    """A request is not valid; the message names the parameter and what it takes."""


class LimitExceeded(InvalidRequest):
    """A request would store more than a setting allows; the message names the setting."""


class NotFound(GpufleetError):
    """An object does not exist."""


class OperationRefused(GpufleetError):
    """An operation would do harm; the message says what to do instead."""


class LeadershipLost(GpufleetError):
    """Another server does the work that this one led; its write was refused, and it may try to lead again."""


class Unavailable(GpufleetError):
    """A dependency does not answer; a later try may succeed."""


class StoreUnavailable(Unavailable):
    """PostgreSQL does not answer."""


class MetricsUnavailable(Unavailable):
    """The metric source does not answer."""


class KubernetesUnavailable(Unavailable):
    """The Kubernetes API does not answer."""


class DevicesUnavailable(Unavailable):
    """The GPU driver of this machine is missing, fails, or does not answer."""


class DriverMismatch(DevicesUnavailable):
    """The driver's library and kernel module have different versions."""


class SlurmUnavailable(Unavailable):
    """Slurm's controller, REST daemon or commands fail or do not answer."""


class ContainersUnavailable(Unavailable):
    """The container engine (Docker, Podman) fails or does not answer."""


class ServerUnavailable(Unavailable):
    """The gpufleet server does not answer another component."""


class IdentityProviderUnavailable(Unavailable):
    """The OpenID Connect provider does not answer, or its answer is not valid."""


def connection_problem(error: BaseException) -> str:
    """Return why a connection failed, in the words of the operating system.

    For example "Connection refused" instead of aiohttp's "Cannot connect to host h:1 ssl:default [Connect call
    failed ('h', 1)]".
    """
    # Imported here to keep `gpufleet --help` fast.
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
