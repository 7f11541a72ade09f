"""Persistence: a snapshot and a log of what came after it, in one directory.

Every change is one JSON line, written to the log before the next one is made; a line that a
crash cut short is dropped when the log is read. When the log has grown, a new snapshot is
written beside the old one and put in its place by renaming, so that there is a whole one at
any moment. The end of a process loses nothing; a power cut may lose the last second.
"""

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpufleet.errors import OperationRefused
from gpufleet.runtime.logs import get_logger
from kubelite.schema import Json
from kubelite.store import Change, Store

_SNAPSHOT, _LOG, _LOCK = "snapshot.jsonl", "log.jsonl", "lock"
_ROTATE_BYTES = 64 * 1024 * 1024
_SYNC_SECONDS = 1.0
_log = get_logger("kubelite")


class _Line(msgspec.Struct, omit_defaults=True):
    version: int
    shelf: str = ""
    object: Json | None = None
    gone: tuple[str, str] | None = None


class Journal:
    """Keeps a store in a directory. One process at a time."""

    def __init__(self, directory: Path, store: Store, *, rotate_bytes: int = _ROTATE_BYTES) -> None:
        self._directory = directory
        self._store = store
        self._rotate_bytes = rotate_bytes
        self._file: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._size = 0
        self._dirty = False

    def open(self) -> None:
        """Read what is there, then note every change."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self._directory / _LOCK).open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise OperationRefused(
                f"another server uses {self._directory}; stop it, or choose another directory"
            ) from error
        self._replay(_SNAPSHOT, after=-1)
        # A crash between snapshot and new log leaves lines in the log that the snapshot has seen.
        self._replay(_LOG, after=self._store.version)
        self._rotate()
        self._store.on_commit.insert(0, self._note)

    def close(self) -> None:
        """Write everything out and let the directory go."""
        if self._file is not None:
            self._store.on_commit.remove(self._note)
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def sync(self) -> None:
        """Bring the log to the disk every second, until cancelled."""
        while True:
            await asyncio.sleep(_SYNC_SECONDS)
            if self._file is not None and self._dirty:
                self._dirty = False
                await asyncio.to_thread(os.fsync, self._file.fileno())

    def _note(self, shelf: str, change: Change) -> None:
        assert self._file is not None
        if change.kind == "DELETED":
            line = msgspec.json.encode(_Line(change.version, shelf, gone=change.entry.key))
        else:
            head = msgspec.json.encode(_Line(change.version, shelf))
            line = head[:-1] + b',"object":' + change.entry.encoded + b"}"
        self._file.write(line + b"\n")
        self._size += len(line) + 1
        self._dirty = True
        if self._size > self._rotate_bytes:
            self._rotate()

    def _replay(self, name: str, *, after: int) -> None:
        path = self._directory / name
        if not path.exists():
            return
        decoder = msgspec.json.Decoder(_Line)
        with path.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                try:
                    line = decoder.decode(text)
                except msgspec.DecodeError as error:
                    # Only the last line can be cut short by a crash; nothing after it can be trusted either.
                    _log.warning(
                        "the journal ends with a broken line", file=str(path), line=number, error=str(error)
                    )
                    return
                if line.version > after:
                    self._restore(line)

    def _restore(self, line: _Line) -> None:
        if line.object is not None:
            self._store.restore(line.shelf, line.object, line.version)
        elif line.gone is not None:
            self._store.shelf(line.shelf).entries.pop(line.gone, None)
        self._store.forget_before(line.version)

    def _rotate(self) -> None:
        """A new snapshot of everything, and an empty log."""
        new = self._directory / f"{_SNAPSHOT}.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(_Line(self._store.version)) + b"\n")
            for shelf, content in self._store.shelves():
                head = msgspec.json.encode(_Line(self._store.version, shelf))[:-1] + b',"object":'
                for entry in content.entries.values():
                    file.write(head + entry.encoded + b"}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._directory / _SNAPSHOT)
        if self._file is not None:
            self._file.close()
        self._file = (self._directory / _LOG).open("wb", buffering=0)
        self._size = 0
        with contextlib.suppress(OSError):
            folder = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
