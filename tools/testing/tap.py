"""Run a module's unittest cases and report them as TAP lines, which tools/testing/runtest.sh counts."""
import faulthandler
import signal
import sys
import traceback
import unittest


class Result(unittest.TestResult):
    def addSuccess(self, test):
        super().addSuccess(test)
        print(f"ok {test.id()}", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"ok {test.id()} # SKIP {reason}", flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.tell(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.tell(subtest, err)

    def tell(self, test, err):
        print(f"not ok {test.id()}")
        for line in "".join(traceback.format_exception(*err)).splitlines():
            print("#", line, flush=True)


def main():
    """Runs the cases named on the command line, or all."""
    loader, module = unittest.defaultTestLoader, sys.modules["__main__"]
    names = sys.argv[1:]
    # A test that exceeds the limit of runtest.sh prints where it was.
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)
    suite = loader.loadTestsFromModule(module)
    if names:
        suite = loader.loadTestsFromNames(names, module)
    result = suite.run(Result())
    sys.exit(not result.wasSuccessful())
