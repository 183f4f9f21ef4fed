"""Of every tool: Ctrl-C or a reader that goes away end it like any other program, without a traceback;
and letters that the terminal lacks are no reason to fail."""
import os
import signal
import sys


def end_quietly(kind, value, trace):
    for what, number in (KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE):
        if issubclass(kind, what):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)    # so that make sees what ended it
    sys.__excepthook__(kind, value, trace)


sys.excepthook = end_quietly
for stream in sys.stdout, sys.stderr:
    if hasattr(stream, "reconfigure"):      # None where it is closed; a test may have its own
        stream.reconfigure(errors="replace")
