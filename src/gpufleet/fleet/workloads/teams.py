"""The team and the user of a workload, by its labels and annotations.

Kubernetes knows neither, so the first of some common keys decides. Without one of them, the team is the
namespace (on Slurm the account), and the user is not known.
"""

from collections.abc import Mapping
from typing import Protocol

TEAM_KEYS = ("team", "gpufleet/team", "app.kubernetes.io/team")
USER_KEYS = ("user", "gpufleet/user", "owner", "created-by", "slurm/user", "local/user")


class Labelled(Protocol):
    """A workload, or a period in which one held GPUs."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations."""


def team_of(workload: Labelled) -> str:
    """Return the team of a workload; its namespace if no key names one."""
    return _first(workload.labels, TEAM_KEYS) or _first(workload.annotations, TEAM_KEYS) or workload.namespace


def user_of(workload: Labelled) -> str:
    """Return the user of a workload; empty if it is not known."""
    return _first(workload.labels, USER_KEYS) or _first(workload.annotations, USER_KEYS)


def is_user(wanted: str, user: str) -> bool:
    """Return whether two spellings name one user: alice, or alice@example.com."""
    wanted, user = wanted.casefold(), user.casefold()
    if "@" in wanted and "@" in user:
        return wanted == user
    return wanted.partition("@")[0] == user.partition("@")[0]


def _first(values: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((values[key] for key in keys if values.get(key)), "")
