"""Errors of the control plane of the end-to-end tests."""


class Unavailable(Exception):
    """This machine has no control plane and can't get one; the message is the reason in one line."""


class ComponentFailed(Exception):
    """A process of the control plane did not start or does not run."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)


class CommandFailed(Exception):
    """kubectl or helm exited with an error."""

    def __init__(self, command: str, status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{command} exited with status {status}: {stderr.strip() or stdout.strip()}")
        self.status, self.stdout, self.stderr = status, stdout, stderr


class RequestFailed(Exception):
    """The API server responded with an error status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status, self.body = status, body
