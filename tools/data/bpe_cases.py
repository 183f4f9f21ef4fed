#!/usr/bin/env python3
"""Write data/tokenizer/bpe_cases.h: the expected results of the byte-pair encoder and its trainer.

    Example: bpe_cases.py vocab.bpe | clang-format --assume-filename=x.h >data/tokenizer/bpe_cases.h

Everything is computed here in the plain way (the published algorithm, PyPI's `regex` for its
pattern), and with tiktoken where it applies; the C code is not used.  Bytes that are not valid
UTF-8 become lone surrogates, which are neither letters, numbers nor white space.
"""
import collections
import sys

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import regex
import tiktoken

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

SAMPLE = """The harness turns a question into steps, and the steps into runs; then it compares.
It's the reader's right to know: what wasn't wired doesn't count, they've said, and we'll see.
A step differs from its baseline in the symbols it names, and in nothing else.
Les étés à l'école étaient étranges; l'été, l'élève était déjà là. Größe, Straße, Füße.
Слово за слово, слово к слову. 数字和文字，数字和文字。 1999, 2001, 2010, 2024; 3.14159, 10,000.
    indented    by    four
    indented    again\tand\ttabs\n\n\nthe end of the sample, the end of the text, the end.
"""
SAMPLE_VOCABULARY = 336

CASES = {
    "empty": b"",
    "one letter": b"a",
    "plain words": b"Hello, world! The steps of the harness.",
    "contractions": b"I'm you're he's she'd we'll they've isn't o'clock 'tis 'S 'LL it's's",
    "contractions at the end": b"it' it'r it'l it'v it's",
    "space before an apostrophe": b" 's 't ''s '''ll",
    "numbers": "0 12 345 6789 10,000 3.14159 1e-8 ½ ² Ⅷ ١٢٣ 一二三".encode(),
    "letters and numbers": b"gpt2 2gpt x1y2 A100-80GB",
    "unicode letters": "été Größe Слово λόγος 数字和文字 한국어 ไทย עברית العربية".encode(),
    "combining marks": "e\u0301te\u0301 नमस्ते n\u0303".encode(),
    "emoji": "🙂 👩‍👩‍👧 🇫🇷🇩🇪 ❤️!! a🙂b".encode(),
    "white space": b"a  b   c\t\td \t e\n\nf \n g\r\nh",
    "white space at the end": b"end   ",
    "only white space": b"   ",
    "one space": b" ",
    "newlines at the end": b"line\n\n\n",
    "unicode white space": "a\u00a0b\u00a0\u00a0c\u3000d\u2003\u2003e\u2028f\u0085g\u1680h".encode(),
    "no white space though it looks so": "a\u180eb \u180ec\u200bd\ufeffe\x1c\x1ff".encode(),
    "control characters": bytes(range(32)) + b"\x7f",
    "punctuation": b"!?... -- (a) [b] {c} <d/> #e $f %g ^h &i *j ~k `l` \"m\" \\n",
    "code": b"for (i = 0; i < n; i++)\n\t\tx[i] += 1;\n",
    "end of text is no special text": b"a<|endoftext|>b",
    "one long word": b"the" * 100,
    "one letter often": b"a" * 257,
    "long run of spaces": b" " * 70 + b"x",
    "invalid: lone continuation": b"a\x80b \xbf\xbf c",
    "invalid: cut off": b"caf\xc3 \xe2\x82 \xf0\x9f\x99",
    "invalid: overlong and surrogate": b"\xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xff\xfe",
    "invalid: latin 1": "Größe été".encode("latin-1"),
    "all bytes": bytes(range(256)),
}


def byte_alphabet():
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return own + others, {b: chr(c) for b, c in
                          zip(own + others, own + list(range(256, 256 + len(others))))}


BYTES, CHARACTER = byte_alphabet()


def words(data):
    text = data.decode("utf-8", "surrogateescape")
    return [word.encode("utf-8", "surrogateescape") for word in regex.findall(PATTERN, text)]


def train(data, size):
    """The merges of the most frequent pair, the smaller ids on a tie."""
    id_of = {bytes([b]): i for i, b in enumerate(BYTES)}
    counts = collections.Counter(words(data))
    parts = {word: [bytes([b]) for b in word] for word in counts}
    merges = []
    while len(merges) + 257 < size:
        pairs = collections.Counter()
        for word, count in counts.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[pair] += count
        new = {pair: n for pair, n in pairs.items() if pair[0] + pair[1] not in id_of}
        best = min(new, key=lambda pair: (-new[pair], id_of[pair[0]], id_of[pair[1]]))
        assert new[best] >= 2
        id_of[best[0] + best[1]] = len(id_of)
        merges.append(best)
        parts = {word: merge(part, best) for word, part in parts.items()}
    return merges


def merge(parts, pair):
    out = []
    i = 0
    while i < len(parts):
        if tuple(parts[i:i + 2]) == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def encode(data, merges):
    rank = {pair: i for i, pair in enumerate(merges)}
    id_of = {bytes([b]): i for i, b in enumerate(BYTES)}
    id_of.update({a + b: 256 + i for i, (a, b) in enumerate(merges)})
    ids = []
    for word in words(data):
        parts = [bytes([b]) for b in word]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda p: rank.get(p, len(rank)))
            if best not in rank:
                break
            parts = merge(parts, best)
        ids += [id_of[part] for part in parts]
    return ids


def load(path):
    byte_of = {c: b for b, c in CHARACTER.items()}
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[1:-1]
    return [tuple(bytes(byte_of[c] for c in side) for side in line.split(" ")) for line in lines]


def check_with_tiktoken(data, merges, ids):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    ranks = {bytes([b]): i for i, b in enumerate(BYTES)}
    ranks.update({a + b: 256 + i for i, (a, b) in enumerate(merges)})
    encoding = tiktoken.Encoding("local", pat_str=PATTERN, mergeable_ranks=ranks,
                                 special_tokens={})
    assert encoding.encode_ordinary(text) == ids, data


def merges_file(merges):
    show = lambda token: "".join(CHARACTER[b] for b in token)
    return "#version: 0.2\n" + "".join(f"{show(a)} {show(b)}\n" for a, b in merges)


def c_text(data):
    """A C string, cut into lines."""
    escapes = {0x22: '\\"', 0x5c: "\\\\", 0x0a: "\\n", 0x09: "\\t", 0x3f: "\\?"}
    out, line = [], ""
    for b in data:
        line += escapes.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}")
        if len(line) > 80 or b == 10:
            out.append(line)
            line = ""
    if line or not out:
        out.append(line)
    return "\n\t".join(f'"{part}"' for part in out)


def c_ids(ids):
    out, line = [], ""
    for i in ids:
        line += f"{i}, "
        if len(line) > 80:
            out.append(line.rstrip())
            line = ""
    return "\n\t\t".join(out + ([line.rstrip()] if line else [])) or "0"


def main():
    gpt2 = load(sys.argv[1])
    small = train(SAMPLE.encode(), SAMPLE_VOCABULARY)
    print("/*\n * bpe_cases - what the byte-pair encoder and its trainer must give.\n"
          " * Written by tools/data/bpe_cases.py.\n */")
    print("#ifndef DATA_BPE_CASES_H\n#define DATA_BPE_CASES_H\n\n#include <stddef.h>\n"
          "#include <stdint.h>\n")
    print(f"static const char SAMPLE_TEXT[] =\n\t{c_text(SAMPLE.encode())};\n")
    print(f"enum {{ SAMPLE_VOCABULARY = {SAMPLE_VOCABULARY} }};\n")
    print("/* The vocabulary of this size that the text gives. */")
    print(f"static const char SAMPLE_MERGES[] =\n\t{c_text(merges_file(small).encode())};\n")
    print("/* A text with its ids in the sample's vocabulary and in GPT-2's. */")
    print("static const struct bpe_case {\n\tconst char *name, *text;\n\tsize_t size;\n"
          "\tconst uint16_t *sample;\n\tsize_t samples;\n\tconst uint16_t *gpt2;\n"
          "\tsize_t gpt2s;\n} BPE_CASES[] = {")
    for name, data in CASES.items():
        print(f'\t{{ "{name}",\n\t{c_text(data)},\n\t{len(data)},')
        for merges in (small, gpt2):
            ids = encode(data, merges)
            check_with_tiktoken(data, merges, ids)
            print(f"\t(const uint16_t[]){{ {c_ids(ids)} }}, {len(ids)},")
        print("\t},")
    print("};\n\n#endif")


if __name__ == "__main__":
    main()
