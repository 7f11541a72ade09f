"""A test suite that states how a Kubernetes API behaves.

kubelite's own tests run it on kubelite, and gpufleet's end-to-end tests run it on kube-apiserver.
Where the two servers differ, one of the runs fails. The suite uses plain HTTP and the real
kubectl, and depends on no Kubernetes client.

To run it on another server, import the test classes into a test module and provide a fixture
`api` that returns a `kubelite.contract.client.Api` for an empty namespace. It needs the extra
`kubelite[contract]`.
"""

import pkgutil

import pytest

# Show the values of failed assertions, as pytest does in test modules.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
