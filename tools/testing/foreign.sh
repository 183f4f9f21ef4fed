#!/bin/bash
# Prepare to compile for the other architecture, and to run what was compiled under emulation.
#
#   tools/testing/foreign.sh DIRECTORY
#
# The cross compiler and qemu are found, or installed with apt (tools/make/setup.sh foreign).  The
# libraries of the other architecture are downloaded and unpacked below DIRECTORY: apt works there
# with lists and a state of its own, and the system gets no second architecture.  Prints shell
# variables for make (machine, CC, EMULATOR, flags of libraries); where it cannot, the last line of
# standard error says why.
set -euo pipefail

case $(uname -m) in
x86_64) machine=aarch64 debian=arm64 ;;
aarch64) machine=x86_64 debian=amd64 ;;
*) echo "no other architecture is known for $(uname -m)" >&2 && exit 1 ;;
esac
mkdir -p "$1"
directory=$(realpath "$1")
triplet=$machine-linux-gnu
root=$directory/root libraries=$directory/root/usr/lib/$triplet
# The C library and the OpenMP runtime come with the cross compiler.
packages="libopenblas0-openmp libopenblas-openmp-dev libgfortran5 libcmocka0 libcmocka-dev libsqlite3-0
	libsqlite3-dev libcjson1 libcjson-dev libpcre2-8-0 libpcre2-dev"
[ "$debian" != amd64 ] || packages="$packages libquadmath0"

# shellcheck disable=SC2086 # a list of packages
unpack_libraries() {
	local apt=(apt-get -q -o "APT::Architecture=$debian" -o "APT::Architectures::=$debian"
		-o "Dir::State=$directory/apt" -o "Dir::State::status=$directory/apt/status"
		-o "Dir::Cache=$directory/apt" -o "APT::Sandbox::User=$(id -un)"
		-o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
	local deb

	rm -rf "$root" "$directory/debs" "$directory/apt"
	mkdir -p "$directory"/apt/{lists,archives}/partial "$directory/debs"
	: >"$directory/apt/status"
	# A source for our own architecture only has nothing here: that is no error yet.
	"${apt[@]}" update || echo "some package lists could not be fetched"
	(cd "$directory/debs" && "${apt[@]}" download $packages) || return 1
	for deb in "$directory"/debs/*.deb; do
		dpkg-deb -x "$deb" "$root" || return 1
	done
	rm -rf "$directory/debs" "$directory/apt"
	touch "$directory/complete"
}

if ! bash tools/make/setup.sh foreign >"$directory/log" 2>&1; then
	why=$(sed -n 's/^kablate: \([^;]*\).*/\1/p' "$directory/log" | tail -n 1)
	echo "$triplet's compiler or qemu-user is missing and cannot be installed: $why" >&2
	exit 1
fi
if [ ! -e "$directory/complete" ] && ! unpack_libraries >"$directory/log" 2>&1; then
	echo "libraries for $debian cannot be downloaded: $(grep '^E:' "$directory/log" | tail -n 1)" >&2
	exit 1
fi

cat <<END
machine=$machine
CC=$triplet-gcc
EMULATOR='qemu-$machine -cpu max -L /usr/$triplet -E LD_LIBRARY_PATH=$libraries:$libraries/openblas-openmp'
PKG_CONFIG_LIBDIR=$libraries/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$root
BLAS_CFLAGS='-isystem$root/usr/include -isystem$root/usr/include/$triplet/openblas-openmp'
BLAS_LIBS='-L$libraries/openblas-openmp -L$libraries -Wl,-rpath-link,$libraries -lopenblas'
END
