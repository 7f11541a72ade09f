"""Load: 1,000 fake nodes × 8 GPUs, 2,000 claim pods at once, beside plain kube-scheduler in the same run.

make e2e-load
make e2e-load ARGS="--nodes 100 --pods 200"

All pods are there before the scheduler starts, for both runs alike; the rate is that of the Bindings between the first
and the last, by the API server's own clock (its audit log). Every claim pod must be bound, or be explained. The last
line says whether the rate with claims is above half of that without.
"""

import argparse
import json
import sys
from pathlib import Path

from e2e.cluster import Cluster, Unavailable, binaries
from e2e.load.report import table
from e2e.load.run import Load, Outcome

RESULT = Path(".gpufleet") / "e2e-load.json"
LEAST_RATIO = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.load", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="fake nodes of 8 GPUs (default %(default)s)")
    parser.add_argument("--pods", type=int, default=2000, help="pods of one GPU each (default %(default)s)")
    parser.add_argument("--unfit", type=int, default=10, help="pods that fit nowhere (default %(default)s)")
    arguments = parser.parse_args()
    try:
        programs = binaries.find(lambda line: print(f"==> {line}", flush=True))
    except Unavailable as reason:
        print(f"no control plane: {reason}", file=sys.stderr)
        return 1
    with Cluster(programs, audit_bodies=False) as cluster:
        load = Load(cluster, arguments.nodes, arguments.pods, arguments.unfit)
        load.prepare()
        plain = load.without_claims()
        claims = load.with_claims()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps({"without claims": plain.as_json(), "with claims": claims.as_json()}, indent=2)
    )
    print("\n".join(table(plain, claims)), flush=True)
    return verdict(plain, claims, arguments.pods, arguments.unfit)


def verdict(plain: Outcome, claims: Outcome, pods: int, unfit: int) -> int:
    """Say what must hold and whether it does; the exit status."""
    ratio = claims.rate / plain.rate
    held = [
        (f"{claims.bound} of {pods} claim pods are bound", claims.bound == pods),
        (f"{claims.explained} of {unfit} pods that fit nowhere are explained", claims.explained == unfit),
        (f"no GPU was given twice ({claims.twice} were)", claims.twice == 0),
        (
            f"with claims {ratio:.2f} of the rate without (above {LEAST_RATIO} is asked for)",
            ratio > LEAST_RATIO,
        ),
    ]
    for sentence, well in held:
        print(f"{'ok  ' if well else 'FAIL'}  {sentence}", flush=True)
    return 0 if all(well for _, well in held) else 1


if __name__ == "__main__":
    sys.exit(main())
