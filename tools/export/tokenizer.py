"""Our vocabularies as tokenizer.json, which the library tokenizers reads.

Bytes and byte-pair vocabularies are byte-level BPE; characters are a BPE without merges; tokens of
generated tasks are words between blanks.
"""
import json
import pathlib

from tools.results import plain

END = "<|endoftext|>"
RAW_BYTES = 0x110000        # data/tokenizer/utf8.h: from here on, bytes that are no UTF-8


class Unfit(Exception):
    """The vocabulary cannot be expressed."""


def byte_letters():
    """GPT-2's letter of every byte, and the bytes in the order of their ids."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return letters, plain + others


def document(model, pre_tokenizer, decoder, end):
    added = [] if end is None else [
        {"id": end, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": pre_tokenizer, "post_processor": None,
            "decoder": decoder, "model": model}


def bpe(vocabulary, merges):
    return {"type": "BPE", "dropout": None, "unk_token": None,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": merges}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}


def of_bytes():
    letters, _ = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)} | {END: 256}
    return document(bpe(vocabulary, []), BYTE_LEVEL, BYTE_LEVEL, 256), 256


def of_merges(text):
    letters, order = byte_letters()
    merges = [line.split(" ") for line in text.splitlines()[1:] if line.strip()]
    words = [letters[byte] for byte in order] + ["".join(pair) for pair in merges] + [END]
    if len(set(words)) != len(words):
        raise Unfit("two merges of the vocabulary make the same token")
    return document(bpe({word: i for i, word in enumerate(words)}, merges), BYTE_LEVEL, BYTE_LEVEL,
                    len(words) - 1), len(words) - 1


def of_characters(text):
    told = json.loads(text)
    if any(symbol >= RAW_BYTES for symbol in told["characters"]):
        raise Unfit("the vocabulary has bytes that are no UTF-8, which transformers cannot hold")
    vocabulary = {chr(symbol): i for i, symbol in enumerate(told["characters"])}
    end = len(vocabulary) if told["end_of_text"] else None
    if end is not None:
        vocabulary[END] = end
    return document(bpe(vocabulary, []), None, {"type": "Fuse"}, end), end


def of_words(words):
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)},
             "unk_token": words[0]}
    return document(model, {"type": "WhitespaceSplit"}, None, None), None


def convert(vocabulary):
    """From what `kablate reference` says: tokenizer.json, and the id of the end of text or None."""
    if "tokens" in vocabulary:
        return of_words(vocabulary["tokens"])
    if vocabulary["tokenizer"] == "bytes":
        return of_bytes()
    path = pathlib.Path(vocabulary["tokenizer"])
    try:
        text = plain.text(path)
        return of_characters(text) if text.startswith("{") else of_merges(text)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise Unfit(f"{path} is no vocabulary: {error}") from None
