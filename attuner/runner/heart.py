"""Tells the control side that this run is alive: writes the heartbeat, copies what is new to storage.

Both in threads, so that no collective, probe or slow disk delays the beat. A driver that couldn't beat for `FENCE_S` must end its
ranks: the control side may give a run up whose heartbeat has stood still for longer, and start another one.
"""

import contextlib
import threading
import time
from pathlib import Path

from . import files
from .storage import Storage, StorageError

BEAT_S = 0.5
SYNC_S = 4.0
FENCE_S = 120.0


class Heart:
    """Beats from `start` to `stop`."""

    def __init__(self, run_dir: Path, storage: Storage) -> None:
        self._file, self._storage = run_dir / files.HEARTBEAT, storage
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._beat, daemon=True)]
        if storage.apart:
            self._threads.append(threading.Thread(target=self._copy, daemon=True))
        self._ok = {t.name: time.monotonic() for t in self._threads}
        self.trouble = ""
        """Why the last copy or beat failed; '' if it didn't."""

    def start(self) -> None:
        """Begin to beat."""
        for thread in self._threads:
            thread.start()

    def silent_s(self) -> float:
        """Return for how long the control side can't have heard this run."""
        return time.monotonic() - min(self._ok.values())

    def stop(self) -> None:
        """Beat no more; a thread that hangs in a dead file system is left behind."""
        self._end.set()
        for thread in self._threads:
            thread.join(10.0)

    def _beat(self) -> None:
        me = threading.current_thread().name
        while not self._end.wait(BEAT_S):
            try:
                partial = self._file.with_name(f".{self._file.name}")
                partial.write_text(f"{time.time():.3f}\n")
                partial.replace(self._file)
            except OSError as error:
                self.trouble = f"{self._file}: {error.strerror or error}"
            else:
                self._ok[me] = time.monotonic()

    def _copy(self) -> None:
        me = threading.current_thread().name
        while not self._end.wait(SYNC_S):
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._storage.sync()
            except (StorageError, OSError) as error:
                self.trouble = str(error)
            else:
                self._ok[me] = time.monotonic()
