"""The contract, on the embedded server."""

from e2e.contract.applying import Applying
from e2e.contract.collecting import Collecting
from e2e.contract.commands import Commands
from e2e.contract.customs import Customs
from e2e.contract.finding import Finding
from e2e.contract.hooks import Hooks
from e2e.contract.objects import Objects
from e2e.contract.pods import Pods
from e2e.contract.watches import Watches


class TestObjects(Objects):
    """See e2e/contract."""


class TestWatches(Watches):
    """See e2e/contract."""


class TestPods(Pods):
    """See e2e/contract."""


class TestApplying(Applying):
    """See e2e/contract."""


class TestCustoms(Customs):
    """See e2e/contract."""


class TestCollecting(Collecting):
    """See e2e/contract."""


class TestHooks(Hooks):
    """See e2e/contract."""


class TestFinding(Finding):
    """See e2e/contract."""


class TestCommands(Commands):
    """See e2e/contract."""
