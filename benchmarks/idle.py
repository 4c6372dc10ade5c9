"""Timings that mean something need a machine that does nothing else."""

from __future__ import annotations

import os
import sys
import time

BUSY = 0.6
PATIENCE = 300


def wait_until_idle() -> None:
    """Return once the load of the last minute is low; end the process where it stays high for five minutes."""
    for _ in range(PATIENCE // 5):
        if os.getloadavg()[0] <= BUSY:
            return
        time.sleep(5)
    sys.exit(f"the machine is busy (load {os.getloadavg()[0]:.1f}); figures would mean nothing")
