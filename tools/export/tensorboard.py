"""Event files of TensorBoard, without its package: scalars, texts, hyperparameters.

core/record/tensorboard.h has the form of a record.  The messages are TensorFlow's Event, Summary and
TensorProto, and HParamsPluginData of TensorBoard's plugin.
"""
import math
import struct

CRC_MASK = 0xa282ead8           # of the TFRecord format
DT_STRING, SUCCESS = 7, 1       # DataType, Status of a session
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def crc_table():
    """CRC-32C (Castagnoli, RFC 3720 B.4)."""
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        yield byte


CRC = tuple(crc_table())


def masked_crc(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 255]
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + CRC_MASK) & 0xffffffff


# ---------------------------------------------------------------- protobuf

def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def whole(field, value):
    return varint(field << 3 | VARINT) + varint(value)


def double(field, value):
    return varint(field << 3 | FIXED64) + struct.pack("<d", value)


def single(field, value):
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", math.copysign(math.inf, value))
    return varint(field << 3 | FIXED32) + data


def inside(field, value):
    """Bytes, a text or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def record(event):
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


# ---------------------------------------------------------------- events

def event(seconds, iteration, content):
    return record(double(1, seconds) + whole(2, iteration) + content)


def version(seconds):
    return event(seconds, 0, inside(3, "brain.Event:2"))


def summary(seconds, iteration, tag, content):
    return event(seconds, iteration, inside(5, inside(1, inside(1, tag) + content)))


def scalar(seconds, iteration, tag, value):
    return summary(seconds, iteration, tag, single(2, value))


def plugin(name, content=b""):
    return inside(9, inside(1, inside(1, name) + inside(2, content)))


def text(seconds, tag, words):
    """Markdown."""
    tensor = whole(1, DT_STRING) + inside(2, inside(2, whole(1, 1))) + inside(8, words)
    return summary(seconds, 0, f"{tag}/text_summary", inside(8, tensor) + plugin("text"))


def value_of(value):
    """A google.protobuf.Value."""
    return double(2, value) if isinstance(value, (int, float)) else inside(3, value)


def hyperparameters(seconds, values, group):
    """Runs of one group differ only in their seeds."""
    named = b"".join(inside(1, inside(1, name) + inside(2, value_of(value))) for name, value in values.items())
    start = inside(3, named + inside(4, group) + double(5, seconds))
    return summary(seconds, 0, "_hparams_/session_start_info", plugin("hparams", start))


def session_end(seconds):
    end = inside(4, whole(1, SUCCESS) + double(2, seconds))
    return summary(seconds, 0, "_hparams_/session_end_info", plugin("hparams", end))
