"""safetensors files without a library: tensors as bytes, written under other names."""
import array
import json
import math
import os
from dataclasses import dataclass

from tools.results import plain


class Damaged(Exception):
    """Not a file of tensors."""


CODES = {"F32": "f", "F64": "d"}
HASH = "file_sha256"        # metadata: core/util/safetensors.h


@dataclass
class Tensor:
    dtype: str
    shape: list
    data: bytes

    def transposed(self):
        """Of a matrix."""
        rows, columns = self.shape
        values = array.array(CODES[self.dtype])
        values.frombytes(self.data)
        turned = array.array(CODES[self.dtype])
        for column in range(columns):
            turned.extend(values[column::columns])
        return Tensor(self.dtype, [columns, rows], turned.tobytes())

    def parts(self, *widths):
        """A matrix [in, out], or a vector [out], cut into pieces along `out`."""
        whole, at = self.shape[-1], 0
        size = array.array(CODES[self.dtype]).itemsize
        rows = self.shape[0] if len(self.shape) == 2 else 1
        assert sum(widths) == whole
        for width in widths:
            data = b"".join(self.data[(row * whole + at) * size:(row * whole + at + width) * size]
                            for row in range(rows))
            yield Tensor(self.dtype, [*self.shape[:-1], width], data)
            at += width


def zeros(like, *shape):
    return Tensor(like.dtype, [*shape], bytes(math.prod(shape) * array.array(CODES[like.dtype]).itemsize))


def tensor_of(entry, data):
    begin, end = entry["data_offsets"]
    size = math.prod(entry["shape"]) * array.array(CODES[entry["dtype"]]).itemsize
    if not 0 <= begin <= end <= len(data) or end - begin != size or min(entry["shape"], default=0) < 0:
        raise ValueError(f"a tensor of {size} bytes at {begin} to {end} of {len(data)}")
    return Tensor(entry["dtype"], entry["shape"], data[begin:end])


def read(path):
    """The tensors by name, and what the file says about them."""
    with open(path, "rb", opener=plain.opener) as file:
        data = file.read()
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        about = header.pop("__metadata__", {})
        return {name: tensor_of(entry, data[start:]) for name, entry in header.items()}, dict(about)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None


def write(path, tensors, about):
    header, at = {"__metadata__": about}, 0
    for name in sorted(tensors):
        tensor = tensors[name]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                        "data_offsets": [at, at + len(tensor.data)]}
        at += len(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    new = f"{path}.new{os.getpid()}"
    try:
        with open(new, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in sorted(tensors):
                file.write(tensors[name].data)
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
