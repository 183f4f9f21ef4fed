"""Of every tool: Ctrl-C ends it like any other program, without a traceback."""
import os
import signal
import sys


def end_quietly(kind, value, trace):
    if issubclass(kind, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)     # so that make sees what ended it
    sys.__excepthook__(kind, value, trace)


sys.excepthook = end_quietly
