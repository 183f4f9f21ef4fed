#!/bin/bash
# Unpack NVIDIA's compiler from PyPI, for a machine that has none: the GPU backend can then be built.
#
#   tools/make/nvcc.sh DIRECTORY
#
# Everything stays below DIRECTORY (1 GB, of which 0.5 GB are downloaded, once).  Prints the path of
# nvcc; where it cannot, the last line of standard error says why.
set -euo pipefail

# cuBLAS has version numbers of its own; 13.1 is the one that CUDA 13.0 came with.
packages="nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.*
	nvidia-cuda-cccl==13.0.* nvidia-cublas==13.1.*"

[ $# -eq 1 ] || { echo "usage: tools/make/nvcc.sh DIRECTORY" >&2 && exit 2; }
mkdir -p "$1"
directory=$(realpath "$1")
toolkit=$directory/packages/nvidia/cu13

# shellcheck disable=SC2086 # a list of packages
unpack() {
	rm -rf "$directory/packages" "$directory/python"
	/usr/bin/python3 -m venv "$directory/python" &&
		"$directory/python/bin/pip" install --no-deps --no-cache-dir --target "$directory/packages" $packages &&
		# nvcc looks for the names that a compiler links with, and in lib64.
		ln -s libcublas.so.13 "$toolkit/lib/libcublas.so" &&
		ln -s libcublasLt.so.13 "$toolkit/lib/libcublasLt.so" && ln -s lib "$toolkit/lib64" &&
		touch "$directory/complete"
}

if ! bash tools/make/setup.sh nvcc >"$directory/log" 2>&1; then
	echo "g++ or python3-venv is missing and cannot be installed: $(grep '^kablate:' "$directory/log" | tail -n 1)" >&2
	exit 1
fi
if [ ! -e "$directory/complete" ] && ! unpack >"$directory/log" 2>&1; then
	echo "nvcc cannot be had from PyPI: $(grep -i '^error' "$directory/log" | tail -n 1)" >&2
	exit 1
fi
echo "$toolkit/bin/nvcc"
