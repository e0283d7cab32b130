"""Run a command and wait for all that it leaves too: what the members of an ensemble take is then counted with it.

    python with_orphans.py COMMAND ARGUMENT ...

The process that starts the members of an ensemble may end before them, and what an orphan takes is counted nowhere. On
Linux they become children of this process instead.
"""

import ctypes
import os
import subprocess
import sys

# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run it; return its exit code as a shell has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process, ended = subprocess.Popen(command), {}
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        ended[pid] = os.waitstatus_to_exitcode(status)
    code = process.returncode = ended[process.pid]
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
