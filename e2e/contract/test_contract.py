"""Run kubelite's contract suite on the real API server."""

from kubelite.contract.apply import TestServerSideApply
from kubelite.contract.custom_resources import TestCustomResources
from kubelite.contract.discovery import TestDiscovery
from kubelite.contract.garbage_collection import TestGarbageCollection
from kubelite.contract.kubectl import TestKubectl
from kubelite.contract.objects import TestObjects
from kubelite.contract.pods import TestPods
from kubelite.contract.watches import TestWatches
from kubelite.contract.webhooks import TestWebhooks

__all__ = [
    "TestCustomResources",
    "TestDiscovery",
    "TestGarbageCollection",
    "TestKubectl",
    "TestObjects",
    "TestPods",
    "TestServerSideApply",
    "TestWatches",
    "TestWebhooks",
]
