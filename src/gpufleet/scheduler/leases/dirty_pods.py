"""The pods whose leases may not match their state and must be reconciled."""

import asyncio

from gpufleet.scheduler.state.ledger import Ledger


class DirtyPods:
    """UIDs of pods to reconcile; `changed` is set when there is one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._uids: set[str] = set()
        self.deleted: set[str] = set()
        """Pods that were seen to be deleted while they had leases."""
        self.changed = asyncio.Event()

    def add(self, uid: str) -> None:
        """Reconcile a pod in the next step."""
        if uid not in self._ledger.pods and not self._ledger.held_by(uid):
            # Nothing left to reconcile. A replica that does not lead would keep the UID forever.
            self._uids.discard(uid)
            self.deleted.discard(uid)
            return
        self._uids.add(uid)
        self.changed.set()

    def take(self) -> set[str]:
        """Remove and return all UIDs."""
        taken, self._uids = self._uids, set()
        return taken

    def put_back(self, uids: set[str]) -> None:
        """Reconcile these pods again, without waking anybody: their calls have just failed."""
        self._uids |= uids
