"""The devices that are prepared for ResourceClaims, in a file that survives restarts of the agent.

Preparing a claim changes nothing on the node, so the file is no state that must be restored. It protects: the API
server, kube-scheduler and the kubelet accept two claims with one device, and this driver does not.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from gpufleet.runtime.logs import get_logger

_log = get_logger("agent")


class PreparedClaim(msgspec.Struct, frozen=True):
    """A prepared claim and its devices."""

    namespace: str
    name: str
    devices: tuple[str, ...]


class PreparedClaims:
    """Prepared claims by UID, written to `file` at every change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._claims = _read(file)

    def users_of(self, devices: Collection[str], apart_from: str) -> Mapping[str, PreparedClaim]:
        """Return the other claims that have one of these devices, by UID."""
        return {
            uid: claim
            for uid, claim in self._claims.items()
            if uid != apart_from and not set(devices).isdisjoint(claim.devices)
        }

    def put(self, uid: str, claim: PreparedClaim) -> None:
        """Add or replace a claim."""
        if self._claims.get(uid) != claim:
            self._claims[uid] = claim
            self._write()

    def drop(self, uid: str) -> None:
        """Remove a claim, if it is known."""
        if self._claims.pop(uid, None) is not None:
            self._write()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(self._claims))
        partial.rename(self._file)


def _read(file: Path) -> dict[str, PreparedClaim]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, PreparedClaim])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("prepared_claims_unreadable", file=str(file), error=str(error))
        return {}
