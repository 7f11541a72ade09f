"""An embedded Kubernetes-shaped API for the demo and for tests.

`async with KubeLite() as server:` is a cluster's API without a cluster: kubectl, gpufleet's own
client and other programs talk to `server.url` as they would to a kube-apiserver. It has the
API's behaviour (versions, watches, apply, webhooks, garbage collection) and no controllers.
"""

from kubelite.objects.context import User
from kubelite.server import KubeLite

__all__ = ["KubeLite", "User"]
