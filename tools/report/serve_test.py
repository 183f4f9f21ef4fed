"""serve: pages over HTTP, up to date, read only, and only for this machine."""
import contextlib
import http.client
import io
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import unittest
import urllib.parse
from unittest import mock

from tools.report import serve
from tools.results import archive, notes
from tools.testing import as_user, made_up, tap


def connection(host, port):
    return contextlib.closing(http.client.HTTPConnection(host, port, timeout=300))


class Case(unittest.TestCase):
    def setUp(self):
        self.runs = made_up.Runs()
        self.addCleanup(shutil.rmtree, self.runs.path)
        self.server = serve.Server(self.runs.path, "127.0.0.1", 0)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def ask(self, path, method="GET", **headers):
        """Status, headers and text."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with connection(*self.server.server_address) as asked:
            asked.request(method, path, headers=headers)
            answer = asked.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def page(self, path):
        status, _, text = self.ask(path)
        self.assertEqual(status, 200, text)
        return text

    def assertIn(self, words, text, msg=None):
        """Without places where lines may break, and without the whole page in its complaint."""
        self.assertTrue(words in text.replace("<wbr>", ""), msg or f"missing: {words}")

    def study(self):
        self.runs.study(seeds=(1, 2, 3))
        self.identity = self.runs.add("new+odd", "0-x", 1, 3.0, ended=False)
        self.runs.rebuild()

    def data(self, text):
        return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


class Pages(Case):
    def test_index(self):
        self.study()
        text = self.page("/")
        self.assertIn('<a href="/experiment/gpt2-ra-mla-full">gpt2-ra-mla-full</a>', text)
        self.assertIn('<a href="/experiment/new%2Bodd">new+odd</a>', text)
        self.assertIn("Do the three reciprocal mechanisms", text)
        self.assertIn(">15 done<", text)
        self.assertIn(">1 running<", text)
        self.assertIn('<option value="gpt2-ra-mla-full/0-mla">gpt2-ra-mla-full: 0-mla, all seeds</option>', text)

    def test_tags_and_notes_are_shown_and_searched(self):
        self.study()
        notes.write(self.runs.path, "new+odd", notes.Note(["rope", "first"], "a <note>"))
        self.assertIn("a &lt;note&gt;", self.page("/"))
        self.assertIn("a &lt;note&gt;", self.page("/experiment/new%2Bodd"))
        found = self.page("/?q=FIRST+note")
        self.assertIn('href="/experiment/new%2Bodd"', found)
        self.assertNotIn('href="/experiment/gpt2-ra-mla-full"', found)
        self.assertIn("No experiment has these words", self.page("/?q=%22%3E%3Cb%3E"))
        self.assertNotIn('"><b>', self.page("/?q=%22%3E%3Cb%3E"))

    def test_experiment_is_the_report_with_other_links(self):
        self.study()
        text = self.page("/experiment/gpt2-ra-mla-full")
        for words in ('data-head="verdict">better', "Difference to the baseline", 'id="live"',
                      'href="/run/0001' + "ab" * 30 + '"'):
            self.assertIn(words, text)
        self.assertEqual(self.page("/run/0001" + "ab" * 30).count("0-mla, seed 1</h1>"), 1)

    def test_what_still_runs_has_curves(self):
        self.study()
        text = self.page("/experiment/" + urllib.parse.quote("new+odd"))
        self.assertIn("no run is finished, nothing to report", text)
        run, = self.data(text)["runs"]
        self.assertTrue(run["isRunning"])
        self.assertEqual(run["series"]["val/loss"][1][-1], 3.0)
        self.assertIn("running, last record 2001-09-09 01:46:40 UTC", text)
        self.assertIn('<p class="question">language</p>', text)     # what is compared

    def test_progress(self):
        """Step 0 took 100 s; seed 2 of step 1 has 60 s to go, and seed 3 waits for one of 100 s."""
        for step, seed in (("0-mla", 1), ("0-mla", 2), ("0-mla", 3), ("1-x", 1)):
            self.runs.add("e", step, seed, 3.0, pace=1)
        self.runs.add("e", "1-x", 2, 3.0, pace=1, until=40, ended=False)
        self.runs.plan("e", {"0-mla": (1, 2, 3), "1-x": (1, 2, 3)})
        self.runs.rebuild()
        whole = "4 of 6 runs done, 1 running, 1 waiting, 2.7 min left"
        self.assertIn(whole, self.page("/"))
        text = self.page("/experiment/e")
        for words in (whole, '<progress value="0.733" aria-label="73%"></progress>',
                      "seed 2: iteration 40 of 100, 1.0 min left; 1 waiting, about 1.7 min<",
                      'data-head="state">waiting</td>'):
            self.assertIn(words, text)
        for words in ("Problems", "Not finished"):
            self.assertFalse(words in text, words)
        self.runs.add("e", "1-x", 3, 3.0)
        self.runs.plan("e", {"0-mla": (1,), "1-x": (1, 3)})
        self.runs.rebuild()
        self.assertFalse("Progress" in self.page("/experiment/e"))     # all is done

    def test_progress_before_anything_is_finished(self):
        self.runs.add("e-tuning", "0-x@1e-3", 1, 3.0, until=20, ended=False, pace=1)
        self.runs.rebuild()
        run = {"kind": "tuning", "experiment": "e-tuning", "step": "0-x@1e-3", "seed": 1, "identity": "0001abababab"}
        os.makedirs(os.path.join(self.runs.path, "e"))
        with open(os.path.join(self.runs.path, "e/planned.json"), "w", encoding="utf-8") as file:
            json.dump([run, {**run, "kind": "run", "experiment": "e", "step": "0-x", "identity": None}], file)
        text = self.page("/experiment/e-tuning")
        self.assertIn("no run is finished yet", text)
        self.assertIn("0 of 1 runs done, 1 running, 1.3 min left", text)

    def test_a_process_that_died_is_seen(self):
        """Although no file has changed."""
        child = subprocess.Popen(["sleep", "300"])
        self.runs.add("e", "0-mla", 1, 3.0, ended=False, host=platform.node(), pid=child.pid)
        self.runs.rebuild()
        self.assertIn("running, last record", self.page("/experiment/e"))
        child.kill()
        child.wait()
        self.assertIn("died, last record", self.page("/experiment/e"))

    def test_tables(self):
        self.study()
        text = self.page("/experiment/gpt2-ra-mla-full")
        for ending, kind, words in (("csv", "text/csv", "step,baseline,kind"), ("tex", "text/x-tex", "tabular"),
                                    ("md", "text/markdown", "| step |"), ("json", "application/json", '"rows"')):
            self.assertIn(f'<a href="gpt2-ra-mla-full/report.{ending}" download>', text)
            status, headers, table = self.ask(f"/experiment/gpt2-ra-mla-full/report.{ending}")
            self.assertEqual((status, headers["Content-Type"]), (200, f"{kind}; charset=utf-8"))
            self.assertIn(words, table)
        for path in ("/experiment/gpt2-ra-mla-full/report.html", "/experiment/x/report.csv",
                     "/experiment/new%2Bodd/report.csv", "/experiment/gpt2-ra-mla-full/x"):
            self.assertEqual(self.ask(path)[0], 404)

    def test_all_runs_as_make_publish_writes_them(self):
        self.study()
        self.assertIn('<a href="gpt2-ra-mla-full/gpt2-ra-mla-full.tar.xz">', self.page("/experiment/gpt2-ra-mla-full"))
        self.assertIn('<a href="new%2Bodd/new%2Bodd.tar.xz">', self.page("/experiment/new%2Bodd"))
        with connection(*self.server.server_address) as asked:
            asked.request("GET", "/experiment/new%2Bodd/new%2Bodd.tar.xz")
            answer = asked.getresponse()
            self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/x-xz"))
            file = os.path.join(self.runs.path, "x")
            with open(file, "wb") as out:
                out.write(answer.read())
        head = archive.unpack(file, os.path.join(self.runs.path, "there"))
        self.assertEqual((head["experiment"], len(head["files"])), ("new+odd", 2))
        for path in ("/experiment/new%2Bodd/other.tar.xz", "/experiment/x/x.tar.xz", "/experiment/..%2Fx/..%2Fx.tar.xz",
                     "/x.tar.xz"):
            self.assertEqual(self.ask(path)[0], 404, path)

    def test_words_that_look_like_a_file(self):
        self.runs.add("e.csv", "0-x", 1, 3.0)
        self.runs.rebuild()
        for path in ("/experiment/e.csv", "/?q=e.csv", "/?q=.tar.xz"):
            self.assertEqual(self.ask(path)[1]["Content-Type"], "text/html; charset=utf-8", path)

    def test_run(self):
        self.runs.add("e", "0-mla", 1, 3.0, moved="another machine", state="invalid",
                      audits=[("wiring", "wte", 0, "no <gradient>")], config={"SYMBOL": "value"})
        self.runs.rebuild()
        text = self.page("/run/0001")
        for words in ("another machine", "no &lt;gradient&gt;", "SYMBOL=value", "<dd>invalid</dd>",
                      "100 of 100", 'href="/experiment/e"'):
            self.assertIn(words, text)

    def test_compare_steps(self):
        self.study()
        text = self.page("/compare?a=gpt2-ra-mla-full/0&b=gpt2-ra-mla-full/1-mla%2Bgate")
        self.assertIn('<td class="text good" data-head="verdict on B">better', text)
        self.assertIn('<option value="gpt2-ra-mla-full/0-mla" selected>gpt2-ra-mla-full: 0-mla, all seeds</option>', text)
        self.assertIn('<td class="text" data-head="symbol">STEP</td>'
                      '<td class="text" data-head="A">mla</td>'
                      '<td class="text" data-head="B">mla+gate</td>', text)
        self.assertEqual({run["step"] for run in self.data(text)["runs"]},
                         {"gpt2-ra-mla-full/0-mla", "gpt2-ra-mla-full/1-mla+gate"})

    def test_compare_any_two_runs(self):
        """Of other seeds, one of them unfinished: curves and symbols, and no verdict."""
        self.study()
        text = self.page(f"/compare?a=0006&b={self.identity}")
        self.assertIn("no seed that both have finished: nothing to compare", text)
        names = [run["step"] for run in self.data(text)["runs"]]
        self.assertEqual(names, ["gpt2-ra-mla-full/0-mla, 0006abab", "new+odd/0-x, 0010abab"])
        self.assertIn('<option value="0006' + "ab" * 30 + '" selected>gpt2-ra-mla-full: 0-mla, seed ', text)

    def test_missing(self):
        self.study()
        for path in ("/experiment/x", "/run/x", "/run/%25", "/compare", "/compare?a=x&b=y",
                     "/../../etc/passwd", "/experiment/..", "/results.db",
                     "/compare?a=0001&b=" + urllib.parse.quote("'; DROP")):
            with self.subTest(path=path):
                self.assertEqual(self.ask(path)[0], 404)

    def test_without_a_database(self):
        status, _, text = self.ask("/")
        self.assertEqual(status, 503)
        self.assertIn("no database", text)


class News(Case):
    def test_a_page_is_new_when_something_happened(self):
        self.study()
        path = "/experiment/gpt2-ra-mla-full"
        _, headers, first = self.ask(path)
        status, _, text = self.ask(path, If_None_Match=headers["ETag"])
        self.assertEqual((status, text), (304, ""))
        self.runs.add("gpt2-ra-mla-full", "1-mla+gate", 4, 2.9)
        self.runs.rebuild()
        status, _, second = self.ask(path, If_None_Match=headers["ETag"])
        self.assertEqual(status, 200)
        self.assertFalse("1-mla+gate, 0011" in first)
        self.assertIn("1-mla+gate, 0011", second)


class Safety(Case):
    def snapshot(self):
        """Every file with its content and times."""
        found = {}
        for directory, _, names in os.walk(self.runs.path):
            found[directory] = os.stat(directory).st_mtime_ns
            for name in names:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found[path] = (os.stat(path).st_mtime_ns, file.read())
        return found

    def test_nothing_is_written(self):
        self.study()
        before = self.snapshot()
        for path in ("/", "/experiment/gpt2-ra-mla-full", "/run/0001", "/compare?a=0001&b=0002",
                     "/experiment/new%2Bodd", "/nothing"):
            self.ask(path)
        self.assertEqual(self.snapshot(), before)

    def test_other_methods_are_refused(self):
        self.study()
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE"):
            with self.subTest(method=method):
                status, headers, _ = self.ask("/", method)
                self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))

    def test_head(self):
        self.study()
        status, headers, text = self.ask("/", "HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertEqual(int(headers["Content-Length"]), len(self.page("/").encode()))

    def test_other_names_are_refused(self):
        self.study()
        port = self.server.server_address[1]
        for host, status in ((f"127.0.0.1:{port}", 200), (f"localhost:{port}", 200), ("[::1]", 200),
                             ("evil.example", 403), (f"evil.example:{port}", 403),
                             ("127.0.0.1.evil.example", 403), ("", 403), ("[", 403)):
            with self.subTest(host=host):
                self.assertEqual(self.ask("/", Host=host)[0], status)

    def test_for_other_machines_only_when_asked(self):
        with serve.Server(self.runs.path, "0.0.0.0", 0) as server:
            self.assertFalse(server.is_local)
            self.assertTrue(server.is_for_us("any.example"))

    def test_headers(self):
        self.study()
        _, headers, text = self.ask("/")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn("frame-ancestors 'none'", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertNotRegex(text, r"(?:src|href|action)=[\"']?(?:https?:|//)")


class Attacks(Case):
    def setUp(self):
        super().setUp()
        self.study()
        said = io.StringIO()
        self.addCleanup(lambda: self.assertEqual(said.getvalue(), ""))
        self.enterContext(contextlib.redirect_stderr(said))

    def client(self):
        made = socket.create_connection(self.server.server_address, timeout=60)
        self.addCleanup(made.close)
        return made

    def test_names_that_no_file_can_have(self):
        for path in ("/%00", "/experiment/%00", "/experiment/a%00b", "/run/%00", "/compare?a=%00&b=%00", "http://[",
                     "/experiment/" + "a" * 5000, "/run/%ff%fe", "/experiment/%2e%2e%2f%2e%2e"):
            with self.subTest(path=path):
                client = self.client()
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 404 "))

    def test_a_client_that_leaves(self):
        """It is gone before its answer is made."""
        asked, left, ended = threading.Event(), threading.Event(), threading.Event()

        def get(_target):
            asked.set()
            left.wait()
            return 200, bytes(1 << 24)
        end = self.server.shutdown_request
        with mock.patch.object(self.server.pages, "get", get), mock.patch.object(
                self.server, "shutdown_request", lambda request: (end(request), ended.set())):
            client = self.client()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))     # a reset
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            asked.wait()
            client.close()
            left.set()
            self.assertTrue(ended.wait(60))

    def test_silent_clients_take_no_more_threads_than_there_are(self):
        before = threading.active_count()
        silent = [self.client() for _ in range(serve.THREADS + 40)]
        self.page("/")      # when the first of them are given up
        self.assertLessEqual(threading.active_count(), before + serve.THREADS)
        for client in silent:
            client.close()

    def test_a_thread_that_cannot_start(self):
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")), \
                mock.patch.object(self.server, "handle_error"):
            for _ in range(serve.THREADS + 1):
                self.assertEqual(self.client().recv(1), b"")
        self.page("/")


class Queue(Case):
    def setUp(self):
        """The server listens and does not answer yet."""
        self.runs = made_up.Runs()
        self.addCleanup(shutil.rmtree, self.runs.path)
        self.server = serve.Server(self.runs.path, "127.0.0.1", 0)
        self.addCleanup(self.server.server_close)

    def test_200_clients_at_once(self):
        self.study()
        clients = []
        for _ in range(200):        # without room in the queue, one would try again and again until its time is over
            clients.append(http.client.HTTPConnection(*self.server.server_address, timeout=5))
            self.addCleanup(clients[-1].close)
            clients[-1].connect()
            clients[-1].request("GET", "/experiment/gpt2-ra-mla-full")
            clients[-1].sock.settimeout(300)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        for client in clients:
            answer = client.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertIn("Difference to the baseline", answer.read().decode())


class Command(unittest.TestCase):
    def test_make_serve(self):
        """As a user calls it; HOST and PORT of the environment do not count."""
        runs = made_up.Runs()
        self.addCleanup(shutil.rmtree, runs.path)
        runs.add("e", "0-mla", 1, 3.0)
        runs.rebuild()
        server = subprocess.Popen(
            ["make", "-s", f"O={as_user.BUILD}", f"RUNS={runs.path}", "PORT=0", "serve"],
            cwd=as_user.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            env=as_user.environment(HOST="0.0.0.0", PYTHONUNBUFFERED="1"))
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGTERM)
        line = server.stdout.readline()
        expected = rf"http://127\.0\.0\.1:([0-9]+)/ shows {runs.path}; Ctrl-C ends it\n"
        port = re.fullmatch(expected, line)[1]
        with connection("127.0.0.1", int(port)) as asked:
            asked.request("GET", "/experiment/e")
            self.assertEqual(asked.getresponse().status, 200)

    def test_a_port_that_is_taken(self):
        with serve.Server(".", "127.0.0.1", 0) as server:
            port = server.server_address[1]
            done = subprocess.run([sys.executable, "-m", "tools.report.serve", "--port", str(port)],
                                  cwd=as_user.ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"serve: 127.0.0.1, port {port}: ", done.stderr)


if __name__ == "__main__":
    tap.main()
