"""No GPU is ever allocated twice, whatever the API server and the processes do (see `machine.py`)."""

import os

from hypothesis import settings
from tests.scheduler.machine import Schedulers

EXAMPLES = int(os.environ.get("GPUFLEET_EXAMPLES", "80"))
STEPS = 30

TestSchedulers = Schedulers.TestCase
TestSchedulers.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
