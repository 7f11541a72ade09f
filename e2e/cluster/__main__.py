"""Run a control plane with fake nodes for manual tests, until Ctrl-C.

python -m e2e.cluster --nodes 100 --gpus 8
"""

import argparse
import contextlib
import signal
import sys

from e2e.cluster import Cluster, Unavailable, binaries
from e2e.fakenodes import FakeNodes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="fake nodes to create (default %(default)s)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs per node (default %(default)s)")
    arguments = parser.parse_args()
    try:
        programs = binaries.find(lambda line: print(f"==> {line}", flush=True))
    except Unavailable as reason:
        print(f"no control plane: {reason}", file=sys.stderr)
        return 1
    with Cluster(programs) as cluster, FakeNodes(cluster.admin) as nodes:
        capacity = {"nvidia.com/gpu": str(arguments.gpus)}
        nodes.add(*(f"node-{number}" for number in range(arguments.nodes)), capacity=capacity)
        print(f"export KUBECONFIG={cluster.kubeconfig} PATH={programs.kubectl.parent}:$PATH", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
