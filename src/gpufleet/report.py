"""Report a training job's numbers to gpufleet, in one line of the training script.

    from gpufleet.report import Reporter

    report = Reporter(parameters=7e9)                # the size of the model, for MFU
    for step, batch in enumerate(batches):
        ...
        report.log(step=step, loss=loss, tokens_per_second=rate)

It never blocks the training and never raises: `log` puts numbers into a bounded buffer, and a background
thread sends them. While the server is unreachable they stay in the buffer; when it is full, the oldest are
dropped and counted. Failures are counted and the first is logged to `gpufleet.report`. At exit it tries for a
few seconds to send the rest.

It only needs the standard library, so this one file can be copied next to a training script. URL, workload and
token are found in the environment; see `docs/training.md`.
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
MAX_NAMES = 195
"""Names reported. The server keeps 200 metrics per workload, of which five describe the model."""

MODEL_INTERVAL = 60.0
"""Seconds between reports of the model's size: the server looks back a few minutes."""

_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_MAX_AHEAD = 60_000
"""Milliseconds that timestamps may run ahead of the clock; more means that the clock was set back."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:@ ()%-]{0,127}", re.ASCII)
_POD = re.compile(
    r"(?:/pods/|[/-]pod)([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
)
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_PRECISIONS = {"fp4": 4, "fp8": 8, "fp16": 16, "bf16": 16, "tf32": 19}
_RETRIED_STATUSES = frozenset({401, 403, 404, 408, 425, 429})
"""Errors that may pass: a token that is new, a workload that the server has not seen yet."""

_log = logging.getLogger("gpufleet.report")
Row = dict[str, Any]


class Reporter:
    """Sends training numbers in the background; see the module."""

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
        self._warned = False
        self._environ = environ
        self._token = token
        self._rank = rank if rank is not None else find_rank(environ)
        self._model = {
            "parameters": parameters,
            "layers": layers,
            "hidden_size": hidden_size,
            "sequence_length": sequence_length,
            "precision_bits": _PRECISIONS.get(str(precision).lower()),
        }
        self._model_due = 0.0
        self._interval, self._timeout, self._at_exit = every, timeout, at_exit
        self._queue: deque[tuple[str, Any, int]] = deque(maxlen=max(1, buffer))
        self._rows: deque[Row] = deque(maxlen=max(1, buffer))
        self._last: dict[str, int] = {}
        self._wake, self._sending = threading.Event(), threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        workload = workload or find_workload(environ, proc)
        self._address = _address(url or environ.get("GPUFLEET_URL", ""), workload, cluster)
        if not self._address:
            self._warn("nothing is reported: set GPUFLEET_URL" + ("" if workload else " and a workload"))

    def log(self, step: float | None = None, **numbers: Any) -> None:
        """Queue numbers with the current time and return immediately."""
        if not self._address or self._closed:
            return
        with contextlib.suppress(Exception):
            now = round(time.time() * 1000)
            if self._pid != os.getpid():
                self._after_fork()
            if step is not None:
                numbers["step"] = step
            for name, value in numbers.items():
                if not self._accepts(name):
                    self.dropped += 1
                    continue
                if len(self._queue) == self._queue.maxlen:
                    self.dropped += 1
                # The server identifies a number by its millisecond, so two of one name need different ones.
                after = self._last[name] + 1
                self._last[name] = after if now < after < now + _MAX_AHEAD else now
                self._queue.append((name, _detached(value), self._last[name]))
            if self._thread is None:
                self._start()

    def flush(self, seconds: float = 5.0) -> bool:
        """Send what is queued, for at most `seconds`; return whether everything was sent."""
        if not self._address or not (self._queue or self._rows):
            return True
        sent: list[bool] = []
        # In a thread that can be abandoned: name lookups and slow responses have no deadline.
        thread = threading.Thread(target=lambda: sent.append(self._drain(seconds)), daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads can be started
            thread.start()
            thread.join(seconds + 0.5)
        return sent == [True]

    def close(self) -> None:
        """Send the rest, for a few seconds at most, and stop."""
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

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gpufleet-report", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _after_fork(self) -> None:
        """Start empty in a child process: it has no thread, and the parent sends its own numbers."""
        self._pid, self._thread = os.getpid(), None
        self._queue.clear()
        self._rows.clear()
        self._wake, self._sending = threading.Event(), threading.Lock()

    def _run(self) -> None:
        backoff = _MIN_BACKOFF
        pause = self._interval * random.random()  # noqa: S311  (spreads the requests of many ranks)
        while True:
            self._wake.wait(pause)
            if self._closed:
                self._drain(self._at_exit)
                return
            try:
                sent = self._send(self._timeout)
            except Exception as error:  # noqa: BLE001  (no error may stop the thread)
                self._fault(str(error))
                sent = False
            backoff = _MIN_BACKOFF if sent else min(2 * backoff, _MAX_BACKOFF)
            pause = (0.0 if len(self._rows) >= BATCH else self._interval) if sent else backoff

    def _drain(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        try:
            while self._queue or self._rows:
                left = until - time.monotonic()
                if left <= 0 or not self._send(min(self._timeout, max(0.1, left))):
                    return False
        except Exception as error:  # noqa: BLE001  (no error may reach the training)
            self._fault(str(error))
            return False
        return True

    def _send(self, timeout: float) -> bool:
        """Send one batch; return False if it must be retried."""
        if not self._sending.acquire(timeout=timeout):
            return False
        try:
            self._make_rows()
            rows = [self._rows[number] for number in range(min(BATCH, len(self._rows)))]
            if not rows:
                return True
            try:
                status = self._post(json.dumps(rows, allow_nan=False).encode(), timeout)
            except (OSError, ValueError) as error:
                self._fault(str(error))
                return False
            if status < 200 or 300 <= status < 400:
                self._fault(f"{self._address} redirects with status {status}; set the final address")
                return False
            if status >= 500 or status in _RETRIED_STATUSES:
                self._fault(f"the server responds with status {status}")
                return False
            for _ in rows:
                self._rows.popleft()
            if status >= 400:
                self.dropped += len(rows)
                self._fault(f"the server rejects the numbers with status {status}")
            else:
                self.sent += len(rows)
            return True
        finally:
            self._sending.release()

    def _make_rows(self) -> None:
        """Convert queued values to rows; drop what is not a finite number."""
        now = time.time()
        if self._queue and now >= self._model_due:
            self._model_due = now + MODEL_INTERVAL
            for name, fact in self._model.items():
                if fact is not None:
                    self._row(name, fact, round(now * 1000))
        while self._queue:
            self._row(*self._queue.popleft())

    def _row(self, name: str, value: Any, at: int) -> None:
        try:
            number = float(value)
        except Exception:  # noqa: BLE001  (whatever it is, it is not a number)
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

    def _accepts(self, name: str) -> bool:
        """Return whether the server accepts the name: it rejects a batch with a wrong one."""
        if name in self._last:
            return True
        if len(self._last) >= MAX_NAMES:
            self._warn(f"{name} is not reported: the server accepts {MAX_NAMES} names per workload")
            return False
        if not _NAME.fullmatch(name):
            self._warn(
                f"{name!r} is not reported: names have letters, digits and _./:@ ()%-, at most 128 characters"
            )
            return False
        self._last[name] = 0
        return True

    def _fault(self, why: str) -> None:
        self.faults += 1
        self._warn(f"numbers are not reported yet: {why}")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s", message)


def find_workload(environ: Mapping[str, str], proc: Path = Path("/proc/self")) -> str | None:
    """Return the workload: a named one, a pod (by the downward API or its mounts), or a Slurm job."""
    if named := environ.get("GPUFLEET_WORKLOAD_UID") or environ.get("POD_UID"):
        return named
    if job := environ.get("SLURM_JOB_ID"):
        return f"slurm:{job}"
    if "KUBERNETES_SERVICE_HOST" in environ:
        for name in ("mountinfo", "cgroup"):
            with contextlib.suppress(OSError):
                if found := _POD.findall((proc / name).read_text(errors="replace")):
                    return str(found[-1]).replace("_", "-")  # the innermost, where pods run inside a pod
    return None


def find_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process in the job, as set by the launcher."""
    text = next((environ[name] for name in _RANKS if environ.get(name)), "")
    return int(text) if text.isdecimal() and int(text) <= 10**6 else None


def find_token(environ: Mapping[str, str]) -> str:
    """Return the token: given, from a file, or the pod's own. Read each time, because files are rotated."""
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


def _detached(value: Any) -> Any:
    """Return a tensor without its graph, as a copy on a GPU, to avoid waiting for it or keeping it alive."""
    if hasattr(value, "full_tensor"):
        return math.nan  # a DTensor: reading it may wait for other ranks and block the training
    try:
        if hasattr(value, "detach"):
            value = value.detach()
            return value.clone() if getattr(value, "is_cuda", False) else float(value)
    except Exception:  # noqa: BLE001  (a value that can't be read is dropped and counted)
        return math.nan
    return value


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: the token is for one server only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
