"""Run a Python program that must not outlive the process that starts it: `python tethered.py -m module ...`.

The kernel sends it SIGTERM when its parent is gone, however the parent died. Only Linux can promise that;
elsewhere the program just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
