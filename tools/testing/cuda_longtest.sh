#!/bin/bash
# The GPU backend compiles and links on a machine without nvcc: with the one from PyPI.  Where nvcc is
# installed, `make check` compiles it, and this is skipped.
set -uo pipefail
O=$(realpath "${O:-build}")

# As a user would call it: without the variables of the make that runs this test.
plain_make() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u TIER -u SANITIZE make -j"$(nproc)" "$@"; }

skip() { echo "ok the GPU backend compiles with nvcc from PyPI # SKIP $1" && exit 0; }

installed=$(plain_make -s which-nvcc) || exit 1
[ -z "$installed" ] || skip "make check compiles it with $installed"

mkdir -p "$O/nvcc" || exit 1
nvcc=$(bash tools/make/nvcc.sh "$O/nvcc" 2>"$O/nvcc/why") || skip "$(tail -n 1 "$O/nvcc/why")"
if plain_make O="$O/nvcc/build" NVCC="$nvcc" "$O/nvcc/build/trial/kablate_cuda.so" >"$O/nvcc/make.log" 2>&1; then
	echo "ok the GPU backend compiles with nvcc from PyPI"
else
	echo "not ok the GPU backend compiles with nvcc from PyPI"
	sed 's/^/# /' "$O/nvcc/make.log"
	exit 1
fi
