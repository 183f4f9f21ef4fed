"""The names of metrics: METRIC_TRAIN_LOSS of core/util/metric_names.h is TRAIN_LOSS here."""
import pathlib
import re

HEADER = pathlib.Path(__file__).parents[2] / "core/util/metric_names.h"
NAMES = dict(re.findall(r'^#define METRIC_(\w+) "(.+)"$', HEADER.read_text(encoding="utf-8"), re.M))
globals().update(NAMES)
