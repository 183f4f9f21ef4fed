#!/bin/bash
# All tests on the emulated GPU; tools/testing/emulated_longtest.sh runs some of them.
exec bash tools/testing/emulated_longtest.sh whole
