#!/bin/bash
# C and CUDA sources are as .clang-format has them.  Versions of clang-format differ, so one counts: where it is not
# installed, the test is skipped.  `make format` writes the files.
version=14
cd "$(dirname "$0")/../.." || exit 1

echo 1..1
found=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
if [ "$found" != $version ]; then
	echo "ok 1 - test_format # SKIP needs clang-format $version; here is ${found:-none}"
	exit
fi
if find core data models tools -regex '.*\.\(c\|h\|cu\|cuh\|cpp\)' -print0 |
	xargs -0 clang-format --dry-run --Werror; then
	echo 'ok 1 - test_format'
else
	echo 'not ok 1 - test_format'
fi
