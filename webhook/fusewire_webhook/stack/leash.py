"""Becomes another program that the kernel kills when its starter dies, even by SIGKILL.

Run as a script: ``leash.py STARTER_PID PROGRAM ARGUMENT…``. The parent-death signal belongs to the *thread* that
started this process, so start it from one that lives as long as the program shall.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Ask for the signal, see that the starter has not died meanwhile, become the program."""
    starter, command = int(argv[0]), argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != starter:
        sys.exit("starter is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
