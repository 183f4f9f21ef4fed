#!/usr/bin/env python3
"""Turn the parquet files of FineWeb-Edu (or any with a column of text) into token shards.

    tools/data/fineweb.py --out DIR [--tokenizer vocab.bpe] PATH_OR_URL...

A path is a parquet file or a directory of them, sorted by name; a URL is fetched to a temporary
file, one at a time, for instance
    https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu/resolve/main/sample/10BT/000_00000.parquet
The text goes as JSON lines to `data prepare`, which is the only tokenizer.  Needs pyarrow.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

PASSED_ON = ["tokenizer", "valid", "shard", "threads"]
ROWS = 1024  # read at a time: a few megabytes of FineWeb


def parquet():
    try:
        import pyarrow.parquet
    except ImportError:
        raise SystemExit("fineweb: needs pyarrow: pip install pyarrow") from None
    return pyarrow.parquet


def local_files(places):
    """Yield paths of parquet files; those that were fetched exist until the next one."""
    for place in places:
        if "://" in place:
            with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
                with urllib.request.urlopen(place) as answer:
                    shutil.copyfileobj(answer, file)
                file.flush()
                yield file.name
        elif os.path.isdir(place):
            found = sorted(pathlib.Path(place).rglob("*.parquet"))
            if not found:
                raise SystemExit(f"fineweb: no parquet files in {place}")
            yield from found
        else:
            yield place


def texts(path, column):
    file = parquet().ParquetFile(path)
    if column not in file.schema_arrow.names:
        raise SystemExit(f"fineweb: {path} has no column {column!r}, "
                         f"only {', '.join(file.schema_arrow.names)}")
    for batch in file.iter_batches(ROWS, columns=[column]):
        yield from (text for text in batch.column(0).to_pylist() if text)


def feed(places, column, stream):
    for path in local_files(places):
        for text in texts(path, column):
            line = json.dumps({"text": text}, ensure_ascii=False)
            stream.write(line.encode() + b"\n")
    stream.write(b'{"end": true}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: tools/data/fineweb.py --out data/fineweb-edu "
                                            "--tokenizer vocab.bpe 10BT/")
    parser.add_argument("places", nargs="+", metavar="PATH_OR_URL")
    parser.add_argument("--column", default="text")
    parser.add_argument("--data", help="the program data",
                        default=pathlib.Path(os.environ.get("O", "build"), "bin/data"))
    passed_on = parser.add_argument_group("passed on to data prepare (see its --help)")
    passed_on.add_argument("--out", required=True)
    for name in PASSED_ON:
        passed_on.add_argument(f"--{name}")
    options = parser.parse_args()
    parquet()  # if it lacks, say so before anything is started
    command = [options.data, "prepare", "--end-line", "--out", options.out]
    for name in PASSED_ON:
        if getattr(options, name):
            command += [f"--{name}", getattr(options, name)]
    child = subprocess.Popen([*command, "-"], stdin=subprocess.PIPE)
    try:
        feed(options.places, options.column, child.stdin)
    except BrokenPipeError:
        pass  # the program has said why
    finally:
        # Text without its last line is refused: a failure here leaves nothing behind.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        status = child.wait()
    sys.exit(status)


if __name__ == "__main__":
    main()
