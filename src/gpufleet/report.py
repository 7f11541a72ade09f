"""Report a training job's numbers to gpufleet, in one line of the training script.

    from gpufleet.report import Reporter

    report = Reporter(parameters=7e9)                # the size of the model, if MFU is wanted
    for step, batch in enumerate(batches):
        ...
        report.log(step=step, loss=loss, tokens_per_second=rate)

It never blocks and never breaks the training: `log` puts numbers into a bounded buffer and a thread
of its own sends them. While the server is away they wait; when the buffer is full the oldest are
dropped and counted. Faults are counted, told once to the log `gpufleet.report`, and swallowed. At
exit it tries for a few seconds to send what is left.

It needs the standard library alone, so that this one file can be copied beside a training script.
Where it reports to, for whom and with which token it finds out by itself; see `docs/training.md`.
"""

import atexit
import contextlib
import json
import logging
import math
import os
import random
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BATCH = 5_000
MOST_NAMES = 195
"""Names that are reported. The server keeps 200 metrics of a workload, five of which describe the model."""

FACTS_EVERY = 60.0
"""Seconds after which the size of the model is told again: readers look back a few minutes."""

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_AHEAD = 60_000
"""Milliseconds that times may run ahead of the clock; more, and the clock was set back."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:@ ()%-]{0,127}", re.ASCII)
_POD = re.compile(
    r"(?:/pods/|[/-]pod)([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
)
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_PRECISIONS = {"fp4": 4, "fp8": 8, "fp16": 16, "bf16": 16, "tf32": 19}
_WORTH_RETRYING = frozenset({401, 403, 404, 408, 425, 429})
"""Refusals that may end: a token that is new, a workload that the server has not seen yet."""

_log = logging.getLogger("gpufleet.report")
Row = dict[str, Any]


class Reporter:
    """Sends numbers in the background; see the module."""

    def __init__(
        self,
        url: str | None = None,
        workload: str | None = None,
        *,
        token: str | None = None,
        rank: int | None = None,
        cluster: str = "",
        parameters: float | None = None,
        layers: float | None = None,
        hidden_size: float | None = None,
        sequence_length: float | None = None,
        precision: str | None = None,
        buffer: int = 50_000,
        every: float = 10.0,
        timeout: float = 5.0,
        at_exit: float = 5.0,
        environ: Mapping[str, str] = os.environ,
        proc: Path = Path("/proc/self"),
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self.faults = 0
        self._told = False
        self._environ = environ
        self._token = token
        self._rank = rank if rank is not None else find_rank(environ)
        self._facts = {
            "parameters": parameters,
            "layers": layers,
            "hidden_size": hidden_size,
            "sequence_length": sequence_length,
            "precision_bits": _PRECISIONS.get(str(precision).lower()),
        }
        self._facts_due = 0.0
        self._every, self._timeout, self._at_exit = every, timeout, at_exit
        self._waiting: deque[tuple[str, Any, int]] = deque(maxlen=max(1, buffer))
        self._rows: deque[Row] = deque(maxlen=max(1, buffer))
        self._last: dict[str, int] = {}
        self._wake, self._sending = threading.Event(), threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        workload = workload or find_workload(environ, proc)
        self._address = _address(url or environ.get("GPUFLEET_URL", ""), workload, cluster)
        if not self._address:
            self._tell("nothing is reported: give GPUFLEET_URL" + ("" if workload else " and a workload"))

    def log(self, step: float | None = None, **numbers: Any) -> None:
        """Note numbers of this moment; returns at once."""
        if not self._address or self._closed:
            return
        with contextlib.suppress(Exception):
            now = round(time.time() * 1000)
            if self._pid != os.getpid():
                self._after_fork()
            if step is not None:
                numbers["step"] = step
            for name, value in numbers.items():
                if not self._takes(name):
                    self.dropped += 1
                    continue
                if len(self._waiting) == self._waiting.maxlen:
                    self.dropped += 1
                # The server knows a number by its millisecond: two of one name must not share it.
                after = self._last[name] + 1
                self._last[name] = after if now < after < now + _AHEAD else now
                self._waiting.append((name, _loose(value), self._last[name]))
            if self._thread is None:
                self._start()

    def flush(self, seconds: float = 5.0) -> bool:
        """Send what is there, for at most `seconds`; whether all of it went."""
        if not self._address or not (self._waiting or self._rows):
            return True
        went: list[bool] = []
        # In a thread that can be left behind: looking up a name and an answer that drips know no deadline.
        thread = threading.Thread(target=lambda: went.append(self._drain(seconds)), daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads are to be had
            thread.start()
            thread.join(seconds + 0.5)
        return went == [True]

    def close(self) -> None:
        """Send what is left, for a few seconds at most, and stop."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._pid == os.getpid() and self._thread is not None:
            self._thread.join(self._at_exit)
        atexit.unregister(self.close)

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gpufleet-report", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _after_fork(self) -> None:
        """A child has no thread, and what its parent has not sent yet is its parent's."""
        self._pid, self._thread = os.getpid(), None
        self._waiting.clear()
        self._rows.clear()
        self._wake, self._sending = threading.Event(), threading.Lock()

    def _run(self) -> None:
        wait = _FIRST_WAIT
        pause = self._every * random.random()  # noqa: S311  (so that a thousand ranks don't come at once)
        while True:
            self._wake.wait(pause)
            if self._closed:
                self._drain(self._at_exit)
                return
            try:
                well = self._send(self._timeout)
            except Exception as error:  # noqa: BLE001  (as above)
                self._fault(str(error))
                well = False
            wait = _FIRST_WAIT if well else min(2 * wait, _LONGEST_WAIT)
            pause = (0.0 if len(self._rows) >= BATCH else self._every) if well else wait

    def _drain(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        try:
            while self._waiting or self._rows:
                left = until - time.monotonic()
                if left <= 0 or not self._send(min(self._timeout, max(0.1, left))):
                    return False
        except Exception as error:  # noqa: BLE001  (nothing of this may reach the training)
            self._fault(str(error))
            return False
        return True

    def _send(self, timeout: float) -> bool:
        """Send one batch; False if it has to wait."""
        if not self._sending.acquire(timeout=timeout):
            return False
        try:
            self._take()
            rows = [self._rows[number] for number in range(min(BATCH, len(self._rows)))]
            if not rows:
                return True
            try:
                status = self._post(json.dumps(rows, allow_nan=False).encode(), timeout)
            except (OSError, ValueError) as error:
                self._fault(str(error))
                return False
            if status < 200 or 300 <= status < 400:
                self._fault(
                    f"{self._address} answers {status} and sends us elsewhere; give the address there"
                )
                return False
            if status >= 500 or status in _WORTH_RETRYING:
                self._fault(f"the server answers {status}")
                return False
            for _ in rows:
                self._rows.popleft()
            if status >= 400:
                self.dropped += len(rows)
                self._fault(f"the server refuses the numbers with {status}")
            else:
                self.sent += len(rows)
            return True
        finally:
            self._sending.release()

    def _take(self) -> None:
        """Turn what was noted into rows; what is no finite number is dropped."""
        now = time.time()
        if self._waiting and now >= self._facts_due:
            self._facts_due = now + FACTS_EVERY
            for name, fact in self._facts.items():
                if fact is not None:
                    self._row(name, fact, round(now * 1000))
        while self._waiting:
            self._row(*self._waiting.popleft())

    def _row(self, name: str, value: Any, at: int) -> None:
        try:
            number = float(value)
        except Exception:  # noqa: BLE001  (whatever it is, it is no number)
            number = math.nan
        if not math.isfinite(number):
            self.dropped += 1
            return
        if len(self._rows) == self._rows.maxlen:
            self.dropped += 1
        row: Row = {"metric": name, "value": number, "timestamp": at}
        if self._rank is not None:
            row["rank"] = self._rank
        self._rows.append(row)

    def _post(self, body: bytes, timeout: float) -> int:
        request = urllib.request.Request(self._address, data=body, method="POST")  # noqa: S310  (checked)
        request.add_header("Content-Type", "application/json")
        token = self._token or find_token(self._environ)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with _opener.open(request, timeout=timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def _takes(self, name: str) -> bool:
        """Whether the server would take the name: one that it refuses costs the whole batch."""
        if name in self._last:
            return True
        if len(self._last) >= MOST_NAMES:
            self._tell(f"{name} is not reported: the server takes {MOST_NAMES} names of a workload")
            return False
        if not _NAME.fullmatch(name):
            self._tell(f"{name!r} is not reported: a name has letters, digits and _./:@ ()%-, 128 at most")
            return False
        self._last[name] = 0
        return True

    def _fault(self, why: str) -> None:
        self.faults += 1
        self._tell(f"numbers wait to be reported: {why}")

    def _tell(self, sentence: str) -> None:
        if not self._told:
            self._told = True
            _log.warning("%s", sentence)


def find_workload(environ: Mapping[str, str], proc: Path = Path("/proc/self")) -> str | None:
    """Who we are: a named workload, a pod (by the downward API, or by its mounts), or a Slurm job."""
    if named := environ.get("GPUFLEET_WORKLOAD_UID") or environ.get("POD_UID"):
        return named
    if job := environ.get("SLURM_JOB_ID"):
        return f"slurm:{job}"
    if "KUBERNETES_SERVICE_HOST" in environ:
        for name in ("mountinfo", "cgroup"):
            with contextlib.suppress(OSError):
                if found := _POD.findall((proc / name).read_text(errors="replace")):
                    return str(found[-1]).replace("_", "-")  # the innermost, where pods run within a pod
    return None


def find_rank(environ: Mapping[str, str]) -> int | None:
    """Our rank among the processes of the job, as its launcher says it."""
    said = next((environ[name] for name in _RANKS if environ.get(name)), "")
    return int(said) if said.isdecimal() and int(said) <= 10**6 else None


def find_token(environ: Mapping[str, str]) -> str:
    """The token: given, in a file, or the pod's own. Read each time, because those change."""
    if token := environ.get("GPUFLEET_TOKEN"):
        return token.strip()
    path = Path(environ.get("GPUFLEET_TOKEN_FILE") or _SERVICE_ACCOUNT)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


def _address(url: str, workload: str | None, cluster: str) -> str:
    if not workload or not url.startswith(("http://", "https://")):
        return ""
    query = "?" + urllib.parse.urlencode({"cluster": cluster}) if cluster else ""
    uid = urllib.parse.quote(workload, safe=":")
    return f"{url.rstrip('/')}/api/workloads/{uid}/trainingPerformance{query}"


def _loose(value: Any) -> Any:
    """A tensor without its graph, and on a GPU a copy, so that neither is waited for nor kept alive."""
    if hasattr(value, "full_tensor"):
        return math.nan  # a DTensor: reading it may wait for other ranks, and so stop the training
    try:
        if hasattr(value, "detach"):
            value = value.detach()
            return value.clone() if getattr(value, "is_cuda", False) else float(value)
    except Exception:  # noqa: BLE001  (a number that can't be had is dropped and counted)
        return math.nan
    return value


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is for the server that it was meant for."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
