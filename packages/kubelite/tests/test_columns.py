"""The cells that `kubectl get` prints."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kubelite.printing.columns import builtin_cells

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Running"}, "Running"),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, "Running"),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "ErrImagePull",
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            "ExitCode:3",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ],
)
def test_the_status_column_of_a_pod(status: dict[str, Any], shown: str) -> None:
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{}]}, "status": status}
    assert builtin_cells("pods", pod, NOW)[2] == shown
