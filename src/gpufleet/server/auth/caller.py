"""The caller of a request, as authentication found it."""

from dataclasses import dataclass, field
from typing import Literal

from gpufleet.kubernetes.token_review import TokenOwner

Role = Literal["viewer", "operator"]
"""A viewer may read, an operator may also change."""

Login = Literal["token", "kubernetes", "oidc", "session", "workload"]
"""How a caller logged in: a line of the tokens file, TokenReview, a JWT of the OIDC provider, the cookie of a
sign-in with OIDC, the token of a workload."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    name: str
    """For the log."""
    role: Role
    login: Login = "token"
    pod_uid: str = ""
    """The calling pod, if Kubernetes names it: it may report the training of its workload."""
    workload_uid: str = ""
    """The workload of a workload token, which may only report the training of that workload."""
    namespaces: frozenset[str] | None = None
    """The only namespaces that the caller may see; None for every namespace."""
    owner: TokenOwner | None = field(default=None, compare=False)
    """The user of Kubernetes, for access that Kubernetes decides on."""
