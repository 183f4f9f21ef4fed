"""Of every tool: Ctrl-C or a reader that goes away end it like any other program, without a traceback;
letters that the terminal lacks are no reason to fail; and no escape sequence of a file reaches the
terminal."""
import os
import signal
import sys

from tools.terminal import terminal


def end_quietly(kind, value, trace):
    for what, number in (KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE):
        if issubclass(kind, what):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)    # so that make sees what ended it
    sys.__excepthook__(kind, value, trace)


sys.excepthook = end_quietly
for name in "stdout", "stderr":
    stream = getattr(sys, name)
    if hasattr(stream, "reconfigure"):      # None where it is closed; a test may have its own
        stream.reconfigure(errors="replace")
        setattr(sys, name, terminal.Guard(stream))
