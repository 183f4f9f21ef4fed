"""What a plan can say of token files before it runs: are they there, and do they hold what it evaluates and trains on?

The programs check the same when they start (data/tasks/text.c), and everything else of the files.
"""
import glob
import os
import struct

MAGIC, HEADER = 20240520, 1024      # of llm.c's form (data/tokens.h)


def tokens_in(path):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(12)
    if len(head) == 12 and size >= HEADER:
        magic, _, count = struct.unpack("<3i", head)
        if magic == MAGIC:
            return count
    return size // 2


def count(pattern):
    """Tokens of all files of a pattern; None: there are none."""
    paths = [path for path in glob.glob(pattern) if os.path.isfile(path)]
    return sum(map(tokens_in, paths)) if paths else None


def missing(values):
    """Sentences about one configuration of the task text."""
    for symbol in ("DATA_TRAIN", "DATA_VALID"):
        if count(values[symbol]) is None:
            yield f"{symbol}={values[symbol]}: no such files, so no run can start; 'make data' makes them of " \
                  "CONFIG_DATA_TEXT"


def too_few(values, updates, per_update):
    length, rows = int(values["MODEL_BLOCK"]), int(values["EVAL_ROWS"])
    valid, train = count(values["DATA_VALID"]), count(values["DATA_TRAIN"])
    there = max(0, (valid or 0) - 1) // length
    if valid is not None and rows > there:
        yield f"EVAL_ROWS={rows}: {values['DATA_VALID']} holds {there} rows of {length} tokens, so no run can start; " \
              "0 takes all"
    if train and updates * per_update > train:
        yield f"training reads {updates * per_update:,} tokens of {train:,} in {values['DATA_TRAIN']}: " \
              f"{updates * per_update / train:.1f} times as many"


def notes(values, updates, per_update):
    if values["TASK"] != "text":
        return []
    return [*missing(values), *too_few(values, updates, per_update)]
