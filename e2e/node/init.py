"""The first process of a node's own PID and mount namespaces; run as a program.

When it ends, the kernel kills every process of the node and removes every mount, however many there are and whatever
happened to their parents. Directories with fixed paths, for the sockets of containerd's shims and the kubelet, are
empty ones of its own. The kubelet finds the kernel settings that it would otherwise write, so that those of the
machine stay as they are.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

_OWN = ("/run", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main(directory: Path) -> None:
    """Prepare the mounts, say so with a file, and reap orphans until killed."""
    for path in _OWN:
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    for name, value in _SETTINGS.items():
        file = directory / name.replace("/", ".")
        file.write_text(value + "\n")
        subprocess.run(["mount", "--bind", file, f"/proc/sys/{name}"], check=True)
    (directory / "ready").touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        signal.sigwait([signal.SIGCHLD])
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
