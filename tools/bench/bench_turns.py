"""Turns on one machine: several parties may start and compile at once, but one computes while time is taken.

A party is all processes of a row.  In its turn those of all others are stopped, with whatever they started, so its
time is that of a machine without them.  Their own limits do not run meanwhile.
"""
import concurrent.futures
import contextlib
import signal
import threading
import time

from tools.bench.bench_process import Lost, Process

SETTLING = 0.1      # seconds in which a GPU ends what the stopped ones had begun


def end_on_signals(name):
    """Ctrl-C ends this program as any other reason does: its processes end with it."""
    def end(number, _):
        raise SystemExit(f"{name}: stopped by signal {number}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


class Turns:
    def __init__(self, at_once=1):
        self.at_once, self.parties, self.lock = at_once, [], threading.RLock()
        self.is_taken = self.is_over = False

    def are_shared(self):
        return self.at_once > 1

    @contextlib.contextmanager
    def alone(self, party):
        """A turn within a turn is the same one."""
        with self.lock:
            others = [] if self.is_taken else [other for other in self.parties if other is not party]
            outer, self.is_taken = self.is_taken, True
            try:
                with self.stopped(others):
                    yield
            finally:
                self.is_taken = outer

    @contextlib.contextmanager
    def stopped(self, parties):
        began = time.monotonic()
        try:
            for party in parties:
                party.stop()
            if any(party.live for party in parties):
                time.sleep(SETTLING)
            yield
        finally:
            for party in parties:
                party.go_on(time.monotonic() - began)

    def finished(self, parties):
        """Runs the parties; each comes when it has ended, with the reason if it was lost."""
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            try:
                running = {pool.submit(party.run): party for party in parties}
                for future in concurrent.futures.as_completed(running):
                    lost = future.exception()
                    if lost and not isinstance(lost, Lost):
                        raise lost
                    yield running[future], lost
            except BaseException:   # also if this program gets a signal to end
                self.end()
                raise

    def end(self):
        """From another thread: a thread that waits for an answer learns that there is none, and nothing starts after that."""
        self.is_over = True
        for party in list(self.parties):
            for process in list(party.live):
                process.signal_family(signal.SIGKILL)


class Party:
    def __init__(self, turns):
        self.turns, self.live, self.started = turns, [], time.monotonic()
        turns.parties.append(self)

    def start(self, *how, **more):
        """A process, when it is ready.  None starts in the turn of another party."""
        with self.turns.lock:
            if self.turns.is_over:
                raise Lost("got a signal to end")
            process = Process(*how, **more)
            self.live.append(process)
        process.wait_until_ready()
        return process

    def alone(self):
        return self.turns.alone(self)

    def stop(self):
        for process in self.live:
            process.stop()

    def go_on(self, stopped_seconds):
        self.started += stopped_seconds
        for process in self.live:
            process.go_on(stopped_seconds)

    def end_all(self):
        with self.turns.lock:
            for process in self.live:
                process.kill()
            self.live = []

    def leave(self):
        with self.turns.lock:
            self.end_all()
            self.turns.parties.remove(self)


class Room:
    """Memory that parties share: one that asks for too much waits until others have left."""

    def __init__(self, size):
        self.size, self.used, self.change = size, 0, threading.Condition()

    @contextlib.contextmanager
    def place(self, size, before_waiting=lambda: None):
        """before_waiting: gives back what the party has already."""
        def fits():
            return self.used == 0 or self.used + size <= self.size
        with self.change:
            if not fits():
                before_waiting()
            self.change.wait_for(fits)
            self.used += size
        try:
            yield
        finally:
            with self.change:
                self.used -= size
                self.change.notify_all()
