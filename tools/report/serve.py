#!/usr/bin/env python3
"""Serves pages of all experiments, which stay up to date during runs.  It never writes.

    /                       all experiments, and a form that compares
    /experiment/NAME        the page that `make report` writes, and the runs that wait
    /experiment/NAME/report.csv, .tex, .md, .json   its table
    /experiment/NAME/NAME.tar.xz                    all its runs, as make publish writes them
    /run/IDENTITY           one run
    /compare?a=..&b=..      any two experiments, steps or runs

A page asks for a newer version every few seconds and keeps what its reader has chosen.  By default
only this machine can reach the server.  It then also refuses requests for other host names, so that
a foreign web page whose name resolves to this machine learns nothing.
"""
import contextlib
import hashlib
import http.server
import io
import ipaddress
import os
import socket
import socketserver
import sys
import threading
import urllib.parse
from html import escape

from tools.plan import compared, config_difference, declaration, tuning
from tools.report import about, ablation, decoding, page, plots, report
from tools.results import archive, notes, records, time_left
from tools.terminal import terminal

SECONDS = 5     # after which a page asks for a newer version
KEPT_PAGES = 32
THREADS = 32    # clients that are served at once
HEADERS = {"Cache-Control": "no-cache",
           "Content-Security-Policy": f"{page.POLICY}; frame-ancestors 'none'",
           "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Resource-Policy": "same-origin"}
TABLES = {"csv": report.as_csv, "tex": report.as_tex, "md": report.as_markdown, "json": report.as_json}
KINDS = {".csv": "text/csv", ".tex": "text/x-tex", ".md": "text/markdown", ".json": "application/json"}
PUBLISHED = ".tar.xz"
HOME = '<p><a href="/">All experiments</a></p>'


class Missing(Exception):
    """No such page."""


def quoted(name):
    return urllib.parse.quote(name, safe="")


def run_link(run):
    return f"/run/{quoted(run.identity)}"


def experiment_link(name):
    return page.Link.to(f"/experiment/{quoted(name)}", name)


# ---------------------------------------------------------------- the index

def experiment_cells(name, lines, planned, note):
    states = [line["state"] for line in lines]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if not all(run.is_finished for run in planned):
        counts = page.Bar.of(about.share_of(planned), about.progress_text(planned))
    return [experiment_link(name), about.question(name), ", ".join(note.tags), note.note, str(len({line["step"] for line in lines})), counts,
            about.moment(max((line["heartbeat"] or 0 for line in lines), default=0))]


def choices(lines, chosen):
    """Options of all steps and runs, by experiment."""
    parts = []
    for name in sorted({line["experiment"] for line in lines}):
        own = sorted((line for line in lines if line["experiment"] == name),
                     key=lambda line: (records.step_order(line["step"]), line["seed"]))
        options = [(name, f"{name}: all steps")]    # a closed select shows only the option's text
        for step in dict.fromkeys(line["step"] for line in own):
            options.append((f"{name}/{step}", f"{name}: {step}, all seeds"))
            options += [(line["identity"], f"{name}: {step}, seed {line['seed']} ({line['identity'][:12]}, "
                         f"{line['state']})") for line in own if line["step"] == step]
        parts.append(f'<optgroup label="{escape(name)}">' + "".join(
            f'<option value="{escape(value)}"{" selected" * (value == chosen)}>'
            f"{escape(text)}</option>" for value, text in options) + "</optgroup>")
    return "".join(parts)


def compare_form(db, a="", b=""):
    lines = records.run_lines(db)
    return '<form class="tools" action="/compare">' + "".join(
        f'<label>{name.upper()} <select name="{name}">{choices(lines, chosen)}</select></label>'
        for name, chosen in (("a", a), ("b", b))) + "<button>compare</button></form>"


def planned_runs(db, runs, name):
    """With their progress; for an experiment that tunes, its own part of the plan."""
    found = time_left.read_plan(runs, name)
    if not found:
        of_tuned = time_left.read_plan(runs, name.removesuffix(tuning.experiment("")))
        found = [run for run in of_tuned if run.experiment == name]
    return time_left.read(db, found)


def search_form(words):
    return '<form class="tools" action="/"><label>Find <input type="search" name="q" placeholder="name, tag, note" ' \
        f'value="{escape(words)}"></label><button>find</button></form>'


def index(db, runs, words=""):
    lines, found = records.run_lines(db), {}
    for name in records.experiments(db):
        note = notes.shown(runs, name)
        if notes.matches(name, note, words.split(), about.question(name)):
            found[name] = note
    headings, cells = report.without_empty(["experiment", "question", "tags", "note", "steps", "runs", "last record"], [
        experiment_cells(name, [line for line in lines if line["experiment"] == name],
                         planned_runs(db, runs, name), note) for name, note in found.items()])
    return page.document("kablate: experiments", [
        "<h1>Experiments</h1>", search_form(words),
        page.table_html(headings, cells, report.is_text_column, "main") if cells else
        "<p>No experiment has these words in its name, question, tags or note.</p>",
        page.heading_html("Compare any two"), compare_form(db)], seconds=SECONDS)


# ---------------------------------------------------------------- an experiment, a run, two of them

def experiment(db, runs, name):
    if name not in records.experiments(db):
        raise Missing(f"{name}: no such experiment")
    steps, planned = records.read_experiment(db, name), planned_runs(db, runs, name)
    try:
        table = report.tabulate(db, runs, name, steps)
    except records.Problem as problem:     # no run is finished: only curves
        return unfinished(name, steps, planned, str(problem), notes.shown(runs, name))
    return report.as_live_html(table, steps, run_link, SECONDS, HOME, report.table_files(f"{quoted(name)}/"),
                               published_link(name), planned)


def published_link(name):
    return page.Link.to(f"{quoted(name)}/{quoted(name)}{PUBLISHED}", f"{name}{PUBLISHED} (make publish)")


def published(runs, name):
    file = io.BytesIO()
    try:
        archive.write(runs, name, file)
    except (archive.Refused, ValueError) as problem:
        raise Missing(str(problem)) from problem
    return file.getvalue()


def table_file(db, runs, name, ending):
    if name not in records.experiments(db) or ending not in TABLES:
        raise Missing("no such page")
    try:
        return TABLES[ending](report.tabulate(db, runs, name, records.read_experiment(db, name)))
    except records.Problem as problem:
        raise Missing(str(problem)) from problem


def unfinished(name, steps, planned, problem, note):
    every = [run for step in steps for run in step.runs]
    drawn = plots.draw_curves((run.step, run) for run in every if run.repeat == 0)
    said = problem.splitlines() if not planned else ["no run is finished yet"]
    parts = [page.list_html(said), about.progress_html(planned, report.is_text_column), page.groups_html(drawn),
             report.runs_html(steps, run_link, planned)]
    head = page.head_html(name, about.question(name), about.facts(every) + about.noted(note),
                          compared.line([step.config for step in steps]))
    return page.document(name, [HOME, head, page.contents_html(parts, (), published_link(name)), *parts], drawn,
                         SECONDS)


def numbers_html(named):
    """A table of (name, step) without differences and verdicts."""
    rows = [(name, ablation.row_of(step, step)) for name, step in named]
    columns = {heading: cell for heading, cell in report.COLUMNS.items() if heading != "step"}
    cells = [[name, *(cell(row) for cell in columns.values())] for name, row in rows]
    return page.table_html(*report.without_empty(["step", *columns], cells), report.is_text_column)


def one_run(db, _runs, identity):
    try:
        step, = records.find(db, identity)
    except records.Problem as problem:
        raise Missing(str(problem)) from problem
    run = step.runs[0]
    drawn = plots.draw_curves([(run.step, run)])
    told = [[about.moment(when), str(iteration), kind, text or ""]
            for when, iteration, kind, text in records.events(db, run)]
    audits = [[audit, subject, "passed" if passed else "failed", detail or ""]
              for audit, subject, passed, detail in run.audits]
    where = [("Experiment", experiment_link(run.experiment)), ("State", about.state(run)),
             ("Iteration", f"{about.last_iteration(run)} of {run.iterations}"),
             ("Identity", run.identity), ("Directory", run.directory)]
    parts = [HOME, page.head_html(f"{run.step}, seed {run.seed}", "", where + about.facts([run]),
                                  compared.line([run.config])),
             numbers_html([(run.step, step)]), page.groups_html(drawn)]
    parts += [page.section_html(title, [], (headings, cells), report.is_text_column)
              for title, headings, cells in (
                  ("Events", ["time", "iteration", "kind", "text"], told),
                  ("Audits", ["audit", "subject", "result", "text"], audits)) if cells]
    parts += [page.heading_html("Compare with"), compare_form(db, run.identity),
              page.configuration_html("All symbols", run.config)]
    return page.document(f"{run.experiment}: {run}", parts, drawn, SECONDS)


def name_of(step):
    """The name in the legend: experiment and step; for a single run also its identity."""
    run = step.runs[0]
    return f"{run.experiment}/{step.name}" + \
        (f", {run.identity[:8]}" if len(step.runs) == 1 else "")


def option_of(name, step, known):
    """The value of the form's option: an experiment, an identity or EXPERIMENT/STEP."""
    run = step.runs[0]
    return name if name in known else run.identity if run.identity.startswith(name) else \
        f"{run.experiment}/{step.name}"


def differences(matched):
    for a, b in matched:
        changes = config_difference.difference(a, b)
        lines = [[symbol, *("-" if value is None else value for value in values)]
                 for symbol, *values in changes]
        grid = (["symbol", "A", "B"], lines) if lines else None
        yield page.section_html(report.difference_title(a, b, changes), [], grid,
                                report.is_text_column)


def compare(db, _runs, a, b):
    try:
        matched = report.pairs(db, a, b)
    except records.Problem as problem:
        raise Missing(str(problem)) from problem
    table = ablation.tabulate_pairs(b, matched)
    cells, lines = report.comparison(table, matched)
    if not any(row.delta for row in table.rows):
        lines = [report.NOT_PAIRED, *table.problems, *table.unfinished]
    steps = {name_of(step): step for pair in matched for step in pair}
    drawn = plots.draw_curves((name, run) for name, step in steps.items() for run in step.runs)
    known = records.experiments(db)
    chosen = [option_of(name, step, known) for name, step in zip((a, b), matched[0])]
    return page.document(f"{b} against {a}", [
        HOME, f"<h1>{escape(b)} against {escape(a)}</h1>", compare_form(db, *chosen),
        page.table_html(*cells, report.is_text_column), page.list_html(lines),
        numbers_html(steps.items()), page.groups_html(drawn), *differences(matched)],
        drawn, SECONDS)


# ---------------------------------------------------------------- the server

def parts_of(path):
    return [urllib.parse.unquote(part) for part in path.strip("/").split("/")]


def answer(db, runs, address):
    """The page of an address."""
    path = parts_of(address.path)
    asked = dict(urllib.parse.parse_qsl(address.query))
    match path:
        case [""]:
            return index(db, runs, asked.get("q", ""))
        case ["experiment", name]:
            return experiment(db, runs, name)
        case ["experiment", name, file] if file.startswith("report."):
            return table_file(db, runs, name, file.removeprefix("report."))
        case ["run", identity]:
            return one_run(db, runs, identity)
        case ["compare"] if asked.get("a") and asked.get("b"):
            return compare(db, runs, asked["a"], asked["b"])
    raise Missing("no such page")


class Pages:
    """Makes a page again only if its files have changed."""

    def __init__(self, runs):
        self.runs, self.lock, self.packing, self.kept = runs, threading.Lock(), threading.Lock(), {}
        self.database = os.path.join(runs, "results.db")

    def stamp(self, path):
        """Times and sizes of the files behind a page."""
        paths = [self.database]
        if path.startswith("/experiment/"):
            directory = os.path.join(self.runs, urllib.parse.unquote(path.split("/")[2]))
            paths += [os.path.join(directory, name)
                      for name in (declaration.FILE, decoding.DIRECTORY, time_left.FILE, notes.FILE)]
        elif path == "/" and os.path.isdir(self.runs):
            paths += [notes.path_of(self.runs, entry.name) for entry in os.scandir(self.runs) if entry.is_dir()]
        return [(found.st_mtime_ns, found.st_size) if found else None
                for found in map(stat_or_none, paths)] + self.going()

    def going(self):
        try:
            return time_left.going(self.database)
        except (records.Problem, records.sqlite3.Error):
            return []

    def get(self, target):
        """(status, body).  One at a time, because Kconfig's tree is shared."""
        try:
            address = urllib.parse.urlsplit(target)
        except ValueError:
            return 404, b"no such page"
        if "\0" in urllib.parse.unquote(target):     # no file, and no name in the database
            return 404, b"no such page"
        if address.path.endswith(PUBLISHED):
            return self.pack(address.path)
        with self.lock:
            stamp = self.stamp(address.path)
            if self.kept.get(target, (None,))[0] != stamp:
                made = self.make(address)
                if made[0] != 200:
                    return made
                while len(self.kept) >= KEPT_PAGES:
                    del self.kept[next(iter(self.kept))]
                self.kept[target] = stamp, made
            return self.kept[target][1]

    def pack(self, path):
        """All runs of an experiment: it may take seconds, in which others get their pages."""
        match parts_of(path):
            case ["experiment", name, file] if file == name + PUBLISHED:
                with self.packing:
                    return self.answered(lambda: published(self.runs, name))
        return 404, b"no such page"

    def make(self, address):
        def asked():
            with contextlib.closing(records.connect(self.database)) as db:
                return answer(db, self.runs, address).encode()
        return self.answered(asked)

    @staticmethod
    def answered(make):
        try:
            return 200, make()
        except Missing as problem:
            return 404, str(problem).encode()
        except (records.Problem, records.sqlite3.Error, OSError) as problem:
            return 503, str(problem).encode()


def kind_of(target):
    """Only what stands below an experiment is a file."""
    parts = parts_of(urllib.parse.urlsplit(target).path)
    if len(parts) > 2 and parts[-1].endswith(PUBLISHED):
        return "application/x-xz"
    ending = os.path.splitext(parts[-1])[1] if len(parts) > 2 else ""
    return f"{KINDS.get(ending, 'text/html')}; charset=utf-8"


def stat_or_none(path):
    try:
        return os.stat(path)
    except OSError:
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    server_version, sys_version, protocol_version = "kablate", "", "HTTP/1.1"
    timeout = 5     # seconds for a silent connection

    def do_GET(self):
        self.close_connection = True    # a client that keeps its connection would keep its thread
        if not self.server.is_for_us(self.headers.get("Host", "")):
            return self.reply(403, b"this server answers only requests for 127.0.0.1 or localhost")
        status, body = self.server.pages.get(self.path)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status == 200 and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        return self.reply(status, body, {"ETag": tag} if status in (200, 304) else {})

    do_HEAD = do_GET

    def reply(self, status, body, more=None):
        self.send_response(status)
        headers = {"Content-Type": kind_of(self.path) if status == 200 else "text/plain; charset=utf-8", **HEADERS, **(more or {}),
                   "Connection": "close", "Content-Length": str(len(body))}
        for name, value in headers.items():
            if status != 304 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code, message=None, explain=None):
        """Answers other methods and broken requests."""
        self.close_connection = True
        code = 405 if code == 501 else code
        self.reply(code, (message or "bad request").encode(), {"Allow": "GET, HEAD"} if code == 405 else {})

    def log_message(self, *_):
        """Logs nothing: live pages would fill the terminal."""


class Server(http.server.ThreadingHTTPServer):
    """As many threads as THREADS; the next clients wait in the queue of the socket."""
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, runs, host, port):
        self.free_threads = threading.BoundedSemaphore(THREADS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = Pages(runs)
        super().__init__((host, port), Handler)
        self.is_local = ipaddress.ip_address(self.server_address[0]).is_loopback

    def is_for_us(self, host):
        """If only this machine can reach the server, other host names are refused."""
        try:
            name = urllib.parse.urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        own = ("localhost", "127.0.0.1", "::1", self.server_address[0])
        return not self.is_local or name in own

    def process_request(self, request, client_address):
        self.free_threads.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:       # no thread was started
            self.free_threads.release()
            raise

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free_threads.release()

    def handle_error(self, request, client_address):
        """A client that has left or does not read is no error."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def server_bind(self):
        """Skips the base class's name lookup, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    @property
    def url(self):
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.report.serve --runs runs --port 8000")
    parser.add_argument("--runs", default="runs", help="directory of the runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any free one")
    args = parser.parse_args(argv)
    try:
        server = Server(args.runs, args.host, args.port)
    except (OSError, OverflowError) as error:
        sys.exit(f"serve: {args.host}, port {args.port}: {error}")
    open_to = "" if server.is_local else "; everyone who reaches this machine can read it"
    print(f"{server.url} shows {args.runs}; Ctrl-C ends it{open_to}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
