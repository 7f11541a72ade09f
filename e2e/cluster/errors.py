"""What can go wrong with the control plane of the end-to-end tests."""


class Unavailable(Exception):
    """This machine has no control plane and can't get one; the text says why, in one line."""


class ComponentFailed(Exception):
    """A process of the control plane did not start, or is not there."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)


class CommandFailed(Exception):
    """kubectl or helm said no; `stderr` is what it said."""

    def __init__(self, command: str, status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{command} ended with status {status}: {stderr.strip() or stdout.strip()}")
        self.status, self.stdout, self.stderr = status, stdout, stderr


class RequestFailed(Exception):
    """The API server answered with an error status; `body` is its answer."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status, self.body = status, body
