"""An embedded Kubernetes API server for tests and demos.

`async with KubeLite() as server:` starts it in the current event loop. kubectl and Kubernetes
clients use `server.url` like a kube-apiserver: resource versions, watches, server-side apply,
webhooks and garbage collection work, but there are no controllers and no nodes.
"""

from kubelite.objects.context import User
from kubelite.server import KubeLite
from kubelite.storage.direct import DirectStorage

__all__ = ["DirectStorage", "KubeLite", "User"]
