"""The free GPUs of one node: whole ones counted, and what is left of those that pods share.

A share fits only on one GPU: eight GPUs with a fifth free each have no room for half a GPU. Which pods share which GPU
is not known in a forward simulation, so shares are taken to be packed well.
"""

from dataclasses import dataclass, field

WHOLE = 1000


@dataclass(slots=True)
class NodeGpus:
    """The free GPUs of one node: whole ones, and the free thousandths of each shared one."""

    whole: int
    shared: list[int] = field(default_factory=list)

    def room(self, milli: int) -> int:
        """Return how many pods of so many thousandths fit."""
        if milli >= WHOLE:
            return self.whole // -(-milli // WHOLE)
        return self.whole * (WHOLE // milli) + sum(free // milli for free in self.shared)

    def fits(self, milli: int) -> bool:
        """Return whether a pod of so many thousandths fits."""
        if milli >= WHOLE or not milli:
            return self.whole * WHOLE >= milli
        return self.whole > 0 or max(self.shared, default=0) >= milli

    def take(self, milli: int) -> None:
        """Take GPUs: a share from the shared GPU that it leaves fullest, or from a whole one."""
        self.whole -= milli // WHOLE
        if part := milli % WHOLE:
            free = min((each for each in self.shared if each >= part), default=None)
            if free is None:
                self.whole -= 1
                free = WHOLE
            else:
                self.shared.remove(free)
            self.shared.append(free - part)

    def release(self, milli: int) -> None:
        """Return GPUs: a share to the shared GPU that it leaves emptiest."""
        self.whole += milli // WHOLE
        part = milli % WHOLE
        while part:
            # If the share came from a GPU that is fuller by now, several GPUs take it.
            free = max((each for each in self.shared if each + part <= WHOLE), default=None)
            if free is None:
                free = max(self.shared, default=0)
            if self.shared:
                self.shared.remove(free)
            returned = min(part, WHOLE - free)
            part -= returned
            if free + returned == WHOLE:
                self.whole += 1
            else:
                self.shared.append(free + returned)
