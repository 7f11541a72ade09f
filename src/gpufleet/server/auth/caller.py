"""What the HTTP edge needs from the rest, as small Protocols; `gpufleet.cli` wires the real things in.

The edge never imports a store, a metric source or a Kubernetes client, so that it can be run
and tested over anything that keeps these promises.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Role = Literal["viewer", "operator"]


@dataclass(frozen=True)
class Caller:
    """Who asks: a name for the log, and what the role allows (viewer: read, operator: change)."""

    name: str
    role: Role
    pod_uid: str = ""
    """The pod that calls, where Kubernetes says so: it may report the training of its workload."""
    workload_uid: str = ""
    """The workload whose own token this is: good for reporting its training and nothing else."""


class Identity(Protocol):
    """Whom a token belongs to, as Kubernetes knows them."""

    @property
    def user(self) -> str:
        """The user name, such as `system:serviceaccount:ml:trainer`."""

    @property
    def groups(self) -> Sequence[str]:
        """The groups that the user is in."""

    @property
    def pod_uid(self) -> str:
        """The pod that the token was made for; empty if for none."""


class TokenReviewer(Protocol):
    """Asks Kubernetes whom a bearer token belongs to (`authentication.k8s.io/v1` TokenReview)."""

    async def review(self, token: str) -> Identity | None:
        """The token's owner, or None if it is not valid; raises Unavailable if nobody can say."""


class Probe(Protocol):
    """Finds out whether a dependency answers."""

    async def __call__(self) -> str:
        """A sentence about it while it works ("PostgreSQL 18.1"); raises Unavailable when it doesn't."""
