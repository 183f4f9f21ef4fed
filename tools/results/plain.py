"""Reads files of others: plain.text(path), open(path, opener=plain.opener).

A FIFO may never get a writer, and a device may never end: a read would hang.
"""
import errno
import os
import stat


def opener(path, flags):
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):     # open() itself refuses a directory
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return descriptor


def text(path, **how):
    with open(path, encoding="utf-8", opener=opener, **how) as file:
        return file.read()
