#!/usr/bin/env python3
"""Measure our tokenizer and trainer against tiktoken and HuggingFace's tokenizers on one text.

    tools/bench/bench_data.py TEXT [--vocab vocab.bpe] [--size N] [--threads N]

Encoding: bytes of text per second of one thread, the best of several runs; ours is the whole
program `data encode`, start-up included.  Training: seconds for a vocabulary, both with the same
threads.  Fails if ours encodes less than 1.5 times as fast as tiktoken, takes more than twice the
training time of tokenizers, or gives other tokens than tiktoken.  Makes its own environment.
"""
import argparse
import array
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import venv

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
PACKAGES = ["tiktoken", "tokenizers"]
LEAST_SPEED, MOST_TIME = 1.5, 2.0
REPEATS = 3
PIECE = 100_000  # characters that tiktoken gets at once: long texts slow it down


def in_environment(directory):
    """Run this file again with an interpreter that has the packages."""
    venv.create(directory, with_pip=True)
    python = pathlib.Path(directory, "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return subprocess.run([python, __file__, "--inside", *sys.argv[1:]]).returncode


def best(function):
    """The shortest time of a few runs, and the last result."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def load_ranks(path):
    """tiktoken's table from a merges file."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    byte_of = {chr(c): b for b, c in zip(own + others, own + list(range(256, 324)))}
    ranks = {bytes([b]): i for i, b in enumerate(own + others)}
    for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            ranks[bytes(byte_of[c] for c in line.replace(" ", ""))] = len(ranks)
    return ranks


def pieces(text):
    """Cut behind a single line end between two words, where no token can reach across."""
    start = 0
    for match in re.finditer(r"(?<=\S)\n(?=\S)", text):
        if match.end() - start >= PIECE:
            yield text[start:match.end()]
            start = match.end()
    yield text[start:]


def encode_with_tiktoken(parts, vocab):
    import tiktoken
    encoding = tiktoken.Encoding("local", pat_str=PATTERN, mergeable_ranks=load_ranks(vocab),
                                 special_tokens={})
    return best(lambda: [i for part in parts for i in encoding.encode_ordinary(part)])


def encode_with_ours(program, path, vocab):
    def run():
        with open(path, "rb") as text:
            return subprocess.run([program, "encode", "--tokenizer", vocab], stdin=text, check=True,
                                  stdout=subprocess.PIPE).stdout
    seconds, ids = best(run)
    return seconds, array.array("H", ids).tolist()


def train_with_tokenizers(path, size):
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    def run():
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size - 1, min_frequency=2, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train([str(path)], trainer)
    return best(run)[0]


def train_with_ours(program, path, size, threads, out):
    return best(lambda: subprocess.run([program, "vocabulary", "--size", str(size), "--threads",
                                        str(threads), "--out", out, path], check=True))[0]


def compare(options, directory):
    program = pathlib.Path(os.environ.get("O", "build"), "bin/data")
    text = pathlib.Path(options.text).read_bytes().decode(errors="ignore")
    path, made = pathlib.Path(directory, "text.txt"), pathlib.Path(directory, "vocab.bpe")
    path.write_bytes(text.encode())
    size = path.stat().st_size

    ours = train_with_ours(program, path, options.size, options.threads, made)
    theirs = train_with_tokenizers(path, options.size)
    print(f"training {options.size} ids from {size / 1e6:.1f} MB, {options.threads} threads: "
          f"{ours:.2f} s, tokenizers {theirs:.2f} s: {ours / theirs:.2f} of its time")
    sound = ours <= MOST_TIME * theirs

    vocab = options.vocab or made
    ours, our_ids = encode_with_ours(program, path, vocab)
    theirs, their_ids = encode_with_tiktoken(list(pieces(text)), vocab)
    print(f"encoding {size / 1e6:.1f} MB, one thread: {size / ours / 1e6:.1f} MB/s, "
          f"tiktoken {size / theirs / 1e6:.1f} MB/s: {theirs / ours:.1f} times as fast")
    if our_ids != their_ids:
        print("the ids differ")
    return sound and theirs >= LEAST_SPEED * ours and our_ids == their_ids


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: tools/bench/bench_data.py book.txt --threads 1")
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("--vocab", help="merges to encode with (default: those trained here)")
    parser.add_argument("--size", type=int, default=8192, help="ids to train")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if not options.inside:
            sys.exit(in_environment(directory))
        os.environ["RAYON_NUM_THREADS"] = str(options.threads)
        sys.exit(not compare(options, directory))


if __name__ == "__main__":
    main()
