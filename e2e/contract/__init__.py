"""What a Kubernetes API does, as gpufleet relies on it: one suite, run on kubelite and on the real server.

The suite speaks plain HTTP and runs the real kubectl, so that it depends on nothing of gpufleet.
`tests/kubelite/test_contract.py` and `e2e/contract/test_contract.py` run the same classes, each on
its own server; where the two servers differ, one of the two runs fails.
"""
