"""Write the archive and the manifest of the kubectl plugin for krew.

python packages/krew/build.py OWNER VERSION dist
"""

import argparse
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = """apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpufleet
spec:
  version: v{version}
  homepage: https://github.com/{owner}/gpufleet
  shortDescription: Show, account for and explain the GPUs of a cluster
  description: |
    Lists nodes, GPUs, workloads, claims, the queue and leases of a gpufleet server, shows
    the fleet on the whole screen, explains why a claim waits, and prints usage reports.
    The server is found through the kubeconfig (service gpufleet in the namespace gpufleet),
    or given with --server.
  caveats: |
    Needs gpufleet (pip install 'gpufleet[top]') or uv, which runs it without installing.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [linux, darwin]}}
      uri: https://github.com/{owner}/gpufleet/releases/download/v{version}/{archive}
      sha256: {digest}
      files:
        - {{from: kubectl-gpufleet, to: .}}
        - {{from: LICENSE, to: .}}
      bin: kubectl-gpufleet
"""


def build(owner: str, version: str, folder: Path) -> Path:
    """Write both files into `folder`; return the path of the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"kubectl-gpufleet-v{version}.tar.gz"
    archive.write_bytes(_archive(version))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = folder / "krew-gpufleet.yaml"
    manifest.write_text(MANIFEST.format(owner=owner, version=version, archive=archive.name, digest=digest))
    return manifest


def _archive(version: str) -> bytes:
    """Return the archive; the same files always give the same bytes."""
    script = (HERE / "kubectl-gpufleet").read_text().replace("@VERSION@", version)
    files = {
        "kubectl-gpufleet": (script.encode(), 0o755),
        "LICENSE": ((HERE.parents[1] / "LICENSE").read_bytes(), 0o644),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("owner")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    build(given.owner, given.version, given.folder)
