#!/usr/bin/env python3
"""Make text to train on from Debian's packages: the same packages give the same bytes.

    linux   code.jsonl: the sources of linux-source-6.1, without generated register headers
    docs    prose.jsonl: English paragraphs of documentation packages, without markup, each once

A line is a document, its field "text". NAME.json beside it records packages (version,
SHA-256), rule, counts and hash. apt-get brings the packages; nothing is installed or unpacked
on the disk. `data prepare --distinct` then removes near duplicates, also between training and
validation.
"""
import collections
import contextlib
import fcntl
import glob
import gzip
import hashlib
import html
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tarfile
import zlib

from tools.terminal import terminal

LEAST = 200             # bytes of a document
MOST = 4 << 20          # of a file: beyond that they are tables
NUMBERS = 0.3           # share of digits among letters and digits, from which on a source is a table
CODE = (".c", ".h", ".S", ".dts", ".dtsi", ".rs", ".py", ".sh", ".pl", ".l", ".y")
LEFT_OUT = re.compile(r"/asic_reg/")
TEXTS = (".html", ".htm", ".xhtml", ".txt", ".rst", ".md", ".pod", ".page")
# Those that yield at least a megabyte of prose, and a tenth of what is fetched.
DOCS = """anarchism apache2-doc clang-16-doc cmake-doc cppreference-doc-en-html db5.3-doc derby-doc dpdk-doc erlang-doc
    exim4-doc-html fp-docs-3.2.2 ghc-doc git-doc jargon-text lazarus-doc-2.2 libboost1.81-doc libglib2.0-doc libgtk-4-doc
    libreoffice-help-en-us libstdc++-12-doc libvirt-doc linux-doc-6.1 llvm-16-doc nodejs-doc octave-doc openjdk-17-doc
    perl-doc pike8.0-doc postgresql-doc-15 python-django-doc python-pandas-doc python-sqlalchemy-doc python3.11-doc
    qtbase5-doc-html qtdeclarative5-doc-html r-doc-html racket-doc rust-doc scala-doc sqlite3-doc swi-prolog-doc twisted-doc
    wx3.2-doc zsh-doc""".split()
RULES = {
    "linux": f"files {' '.join(CODE)} of {LEAST} to {MOST} bytes, without /asic_reg/ and without those of which "
             f"{NUMBERS:.0%} or more of letters and digits are digits",
    "docs": f"files {' '.join(TEXTS)}; paragraphs of 10 words or more, of which 20% are common English words "
            f"and 80% of the characters letters or blanks; each paragraph once; {LEAST} bytes or more of a file",
}


class Refusal(Exception):
    """One sentence for the user."""


# ---------------------------------------------------------------- packages

def download(package, directory):
    """What apt-get says when it fails is its last line."""
    os.makedirs(directory, exist_ok=True)
    try:
        done = subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", package], cwd=directory,
                              capture_output=True, text=True)
    except FileNotFoundError:
        raise Refusal(f"{package}: there is no apt-get here; put the package's .deb file into {directory}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or [f"status {done.returncode}"]
        raise Refusal(f"{package}: apt-get brings no such package ({said[0]}); run 'apt-get update' with a network, or put "
                      f"its .deb file into {directory}")


def package_file(package, directory):
    """The one .deb file of this package; apt-get's choice if there is none yet."""
    pattern = os.path.join(glob.escape(directory), f"{package}_*.deb")
    if not glob.glob(pattern):
        download(package, directory)
    found = sorted(glob.glob(pattern))
    if len(found) != 1:
        raise Refusal(f"{package}: {len(found)} versions in {directory}; keep one")
    return found[0]


def record_of(package, path):
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"package": package, "version": os.path.basename(path).split("_")[1].replace("%3a", ":"), "sha256": digest}


DAMAGED = (tarfile.TarError, EOFError, zlib.error, OSError)


def damaged(where, error):
    return Refusal(f"{where}: damaged ({error}); remove it, and it is fetched again")


def tar_entries(stream, where):
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as tar:
            for entry in tar:
                if entry.isfile():
                    yield entry, tar
    except DAMAGED as error:
        raise damaged(where, error) from None


def content(entry, tar, where):
    try:
        return tar.extractfile(entry).read()
    except DAMAGED as error:
        raise damaged(where, error) from None


def deb_entries(path):
    """(entry, tar) of every file in a package, in its own order."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as child:
        try:
            yield from tar_entries(child.stdout, path)
            while child.stdout.read(1 << 20):
                pass
        finally:
            child.stdout.close()
    if child.returncode:
        raise Refusal(f"{path}: damaged, says dpkg-deb; remove it, and it is fetched again")


# ---------------------------------------------------------------- code

def decode(data):
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


DIGITS, LETTERS = b"0123456789", bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1))
NO_DIGITS, NO_LETTERS = (bytes(set(range(256)) - set(kept)) for kept in (DIGITS, LETTERS))


def is_table(data):
    """Mostly numbers, such as masks of registers or firmware."""
    digits, letters = len(data.translate(None, NO_DIGITS)), len(data.translate(None, NO_LETTERS))
    return digits >= NUMBERS * (digits + letters)


def code_of(item):
    _, data = item
    return None if is_table(data) else decode(data)


def sources(path):
    for entry, tar in deb_entries(path):
        if not entry.name.endswith(".tar.xz"):
            continue
        for inner, inner_tar in tar_entries(tar.extractfile(entry), path):
            if inner.name.endswith(CODE) and LEAST <= inner.size <= MOST and not LEFT_OUT.search(inner.name):
                yield inner.name, content(inner, inner_tar, path)


# ---------------------------------------------------------------- prose

COMMON = frozenset("the of to and a in is for that this be it with as on are by or if not can from an will when which "
                   "you at has have may its was but were all they their he his one there use used your".split())
WITHOUT = re.compile(r"<(script|style|pre|nav|head|header|footer|svg|math|textarea|select|button|table)\b.*?</\1\s*>", re.S | re.I)
INLINE = re.compile(r"</?(?:a|abbr|acronym|b|bdi|big|cite|code|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|"
                    r"strong|sub|sup|tt|u|var|wbr|guiseq|gui|app|link|key|keyseq|file|cmd)\b[^<>]*>", re.I)
TAG = re.compile(r"<!--.*?-->|<[^<>]*>", re.S)
POD = re.compile(r"^=\w+.*$|[A-Z]<+\s*((?:[^<>])*?)\s*>+", re.M)
SOURCES = re.compile(r"/_sources/")     # of pages that are there as HTML, too
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")


def is_prose(paragraph):
    words = WORD.findall(paragraph)
    if len(words) < 10 or sum(word.lower() in COMMON for word in words) < 0.2 * len(words):
        return False
    return sum(1 for c in paragraph if c.isalpha() or c == " ") >= 0.8 * len(paragraph)


def without_markup(name, text):
    if name.endswith(".pod"):
        return POD.sub(lambda found: found[1] or "", text)
    if name.endswith((".html", ".htm", ".xhtml", ".page")):
        text = WITHOUT.sub("\n\n", text)
        text = re.sub(r"\n\s*\n", "\n", text)
        return html.unescape(TAG.sub("\n\n", INLINE.sub("", text)))
    return text


def prose_of(item):
    """The paragraphs that are English sentences."""
    name, data = item
    if name.endswith(".gz"):
        name = name[:-3]
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return []
    blocks = re.split(r"\n\s*\n", without_markup(name, decode(data)))
    # An indented block of plain text is an example.
    if not name.endswith((".html", ".htm", ".xhtml", ".page")):
        blocks = [block for block in blocks if not block.startswith(("    ", "\t"))]
    paragraphs = [" ".join(block.split()) for block in blocks]
    return [paragraph for paragraph in paragraphs if is_prose(paragraph)]


def pages(path):
    for entry, tar in deb_entries(path):
        if entry.name.removesuffix(".gz").endswith(TEXTS) and LEAST <= entry.size <= MOST \
                and not SOURCES.search(entry.name):
            yield entry.name, content(entry, tar, path)


def joined_once(pages_of_paragraphs, seen):
    """The text of each page, from paragraphs that no page before had."""
    for paragraphs in pages_of_paragraphs:
        new = []
        for paragraph in paragraphs:
            digest = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
            if digest not in seen:
                seen.add(digest)
                new.append(paragraph)
        yield "\n\n".join(new)


# ---------------------------------------------------------------- a corpus

CORPORA = {"linux": (["linux-source-6.1"], "code.jsonl"), "docs": (DOCS, "prose.jsonl")}


def texts(name, path, pool, seen):
    if name == "linux":
        return filter(None, pool.imap(code_of, sources(path), 64))
    return joined_once(pool.imap(prose_of, pages(path), 64), seen)


def write_lines(texts_found, file, digest):
    count = collections.Counter()
    for text in texts_found:
        if len(text) < LEAST:
            continue
        line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
        file.write(line)
        digest.update(line)
        count.update(documents=1, bytes=len(text.encode()))
    return dict(count)


def leave_interrupts():
    """Ctrl-C reaches every process of the terminal; the parent says what happened."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make(name, packages, out, directory):
    """Writes the corpus and its record; nothing under their names before both are whole."""
    file_name = CORPORA[name][1]
    path, new = os.path.join(out, file_name), os.path.join(out, file_name + ".tmp")
    paths = [package_file(package, directory) for package in packages]
    record, digest, seen = [], hashlib.sha256(), set()
    try:
        with open(new, "wb") as file, multiprocessing.Pool(initializer=leave_interrupts) as pool:
            for package, its_path in zip(packages, paths):
                count = write_lines(texts(name, its_path, pool, seen), file, digest)
                record.append({**record_of(package, its_path), **count})
                print(f"  {package} {record[-1]['version']}: {count.get('documents', 0)} documents, "
                      f"{count.get('bytes', 0) / 1e6:.1f} MB", flush=True)
            file.flush()
            os.fsync(file.fileno())
        text = json.dumps({"file": file_name, "sha256": digest.hexdigest(), "rule": RULES[name], "packages": record}, indent=1)
        with open(os.path.join(out, name + ".json.tmp"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(new, path)
        os.replace(os.path.join(out, name + ".json.tmp"), os.path.join(out, name + ".json"))
    finally:
        for left in (new, os.path.join(out, name + ".json.tmp")):
            with contextlib.suppress(FileNotFoundError):
                os.remove(left)
    print(f"{path}: {sum(p.get('bytes', 0) for p in record) / 1e6:.1f} MB, sha256 {digest.hexdigest()}")


def lock(directory):
    """Held until this process ends."""
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal(f"{directory}: another process makes a corpus here; wait for it") from None


def main():
    parser = terminal.parser(__doc__, "python3 -m tools.data.corpus --out data/corpus linux+docs")
    parser.add_argument("name", help=f"{' or '.join(CORPORA)}, or several with + between them")
    parser.add_argument("--out", default="data/corpus", help="where the texts go (default: %(default)s)")
    parser.add_argument("--packages", help="where .deb files are kept (default: OUT/packages)")
    parser.add_argument("--only", help="these packages instead of all, for a try")
    options = parser.parse_args()
    names = options.name.split("+")
    if not set(names) <= set(CORPORA):
        sys.exit(f"corpus: NAME={options.name}: there are {' and '.join(CORPORA)}, or linux+docs; for other text see docs/data.md")
    try:
        os.makedirs(options.out, exist_ok=True)
        lock(options.out)
        for name in names:
            packages = options.only.split() if options.only else CORPORA[name][0]
            make(name, packages, options.out, options.packages or os.path.join(options.out, "packages"))
    except Refusal as refusal:
        sys.exit(f"corpus: {refusal}")
    except OSError as error:
        sys.exit(f"corpus: {error.filename or options.out}: {error.strerror}; nothing was changed")
    except KeyboardInterrupt:
        sys.exit("corpus: interrupted; nothing was changed")


if __name__ == "__main__":
    main()
