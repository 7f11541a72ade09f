"""A test suite that states how a Kubernetes API behaves.

kubelite's own tests run it on kubelite, and gpufleet's end-to-end tests run it on kube-apiserver.
Where the two servers differ, one of the runs fails. The suite uses plain HTTP and the real
kubectl, and depends on no Kubernetes client.

To run it on another server, import the test classes into a test module and provide a fixture
`api` that returns a `kubelite.contract.client.Api` for an empty namespace. It needs the extra
`kubelite[contract]`.
"""
