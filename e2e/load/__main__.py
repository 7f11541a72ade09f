"""Bind 2,000 claim pods on 1,000 fake nodes of 8 GPUs, and compare with plain kube-scheduler in the same run.

make e2e-load
make e2e-load ARGS="--nodes 100 --pods 200"
make e2e-load ARGS="--pods 1000 --gpus 8"
make e2e-load ARGS="--pods 1000 --gpus 8 --gang 8"
make e2e-load ARGS="--mode asked"
make e2e-load ARGS="--delivery dra --nodes 200 --pods 1500"

All pods exist before the scheduler starts, in both runs. The rate counts Bindings between the first and the last, by
the times in the API server's audit log; for gangs it counts from their first lease. Every claim pod must be bound or
explained. For pods of one GPU, the rate with claims must be 0.6 of the rate without. Larger pods and gangs write a
lease per GPU, so their rate is only reported. In mode `dra` kube-scheduler allocates ResourceClaims itself in the first
run; the rate of the second, in which gpufleet does, must be at least 1.2 times as high.
"""

import argparse
import json
import sys
import typing
from pathlib import Path

from e2e.cluster import Cluster, Unavailable, binaries
from e2e.load.dra import DraLoad
from e2e.load.report import table
from e2e.load.run import Load, Mode, Outcome

RESULT = Path(".gpufleet") / "e2e-load.json"
LEAST_RATIO = 0.6
LEAST_DRA_RATIO = 1.2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.load", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="fake nodes of 8 GPUs (default %(default)s)")
    parser.add_argument("--pods", type=int, default=2000, help="pods (default %(default)s)")
    parser.add_argument("--unfit", type=int, default=10, help="pods that fit nowhere (default %(default)s)")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of each pod (default %(default)s)")
    parser.add_argument("--gang", type=int, default=1, help="pods that start together (default %(default)s)")
    parser.add_argument(
        "--delivery", choices=("extender", "dra"), default="extender", help="mode (default %(default)s)"
    )
    parser.add_argument(
        "--mode",
        choices=typing.get_args(Mode),
        default="direct",
        help="let gpufleet bind pods that it can check itself, or only pods for which kube-scheduler asks, "
        "or all of them without kube-scheduler (default %(default)s)",
    )
    arguments = parser.parse_args()
    try:
        programs = binaries.find(lambda line: print(f"==> {line}", flush=True))
    except Unavailable as reason:
        print(f"no control plane: {reason}", file=sys.stderr)
        return 1
    with Cluster(programs, audit_bodies=False) as cluster:
        sizes = (arguments.nodes, arguments.pods, arguments.unfit, arguments.gpus, arguments.gang)
        if arguments.delivery == "dra":
            dra = DraLoad(cluster, *sizes)
            dra.prepare()
            plain, claims = dra.by_kube_scheduler(), dra.by_gpufleet()
        else:
            load = Load(cluster, *sizes)
            load.prepare()
            plain, claims = load.without_claims(), load.with_claims(arguments.mode)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({plain.name: plain.as_json(), claims.name: claims.as_json()}, indent=2))
    print("\n".join(table(plain, claims)), flush=True)
    small = arguments.gpus == arguments.gang == 1
    least = LEAST_DRA_RATIO if arguments.delivery == "dra" else LEAST_RATIO
    return verdict(plain, claims, arguments.pods, arguments.unfit, least if small else 0.0)


def verdict(plain: Outcome, claims: Outcome, pods: int, unfit: int, least: float) -> int:
    """Print each requirement and whether it is met. Return the exit status."""
    ratio = claims.rate / plain.rate
    required = f" (required: {least})" if least else ""
    results = [
        (f"{claims.bound} of {pods} claim pods are bound", claims.bound == pods),
        (f"{claims.explained} of {unfit} pods that fit nowhere are explained", claims.explained == unfit),
        (f"no GPU was allocated twice ({claims.double_allocated} were)", claims.double_allocated == 0),
        (f"{claims.name}: {ratio:.2f} of the rate of {plain.name}{required}", ratio >= least),
    ]
    for sentence, ok in results:
        print(f"{'ok  ' if ok else 'FAIL'}  {sentence}", flush=True)
    return 0 if all(ok for _, ok in results) else 1


if __name__ == "__main__":
    sys.exit(main())
