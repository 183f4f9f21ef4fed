#!/bin/bash
# The kernels of the GPU backend on an emulated GPU (core/backend/cuda/emulated): the test of the
# emulation, then the test programs that take about a minute there, as samples: one entry of each
# gradient by central differences, each model in one of the precisions.  Every op still runs in every
# precision, forward and backward, and all its values are compared with the CPU's.  Of decoding, the cases in
# bfloat16 run.
# emulated_soaktest.sh runs all.  Where there is no g++, each is skipped by name, with the
# reason.
#
#   tools/testing/emulated_longtest.sh [whole]
set -uo pipefail
O=$(realpath "${O:-build}")
emulation=core/backend/cuda/emulated/emulated_test

plain_make() {
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u TIER make O="$O" "$@"
}

decoding=models/decode_test
whole_only=models/parity_test
tests=$(plain_make -s which-emulated | tr ' ' '\n' | grep -vxE "$decoding|$whole_only") || exit 1
races="core/backend/backend_test core/ops/fused_test"
if [ "${1:-}" = whole ]; then
	tests="$whole_only $tests"
	cases='*'
else
	export KABLATE_TEST_ENTRIES=1
	cases='*_stored'
fi

skip_all() { # WHY
	local test

	for test in $emulation $decoding $tests; do
		echo "ok $test emulated # SKIP $1"
	done
	exit 0
}

# The program's own lines, under its name and the device.
retell() { # TEST LOG DEVICE
	sed -nE -e "s|^((not )?ok) ([a-z_]+)( # SKIP.*)?$|\1 $1 \3 $3\4|p" \
		-e "s|^((not )?ok) [0-9]+ - (.*)|\1 $1 \3 $3|p" "$2"
}

# Reports a program; one that ends badly shows all that it said.
run() { # RACES TEST PROGRAM [CASES]
	local log=$O/emulated/$2.races-$1.log device=emulated status

	[ "$1" = off ] || device='emulated in two orders'
	mkdir -p "$(dirname "$log")"
	# Two orders copy all memory for each kernel, and every stream has some of its own.
	[ "$1" = off ] || export KABLATE_CUDA_STREAMS=off
	KABLATE_EMULATED_RACES=$1 KABLATE_TEST_BACKEND=emulated CMOCKA_MESSAGE_OUTPUT=TAP "${@:3}" >"$log" 2>&1
	status=$?
	retell "$2" "$log" "$device"
	[ $status -eq 0 ] || { echo "not ok $2 $device: exit status $status" && sed 's/^/# /' "$log"; }
}

if [ ! -e "$O/kablate_emulated.so" ]; then # make found no g++
	mkdir -p "$O/emulated" || exit 1
	bash tools/make/setup.sh emulated 2>"$O/emulated/why" || skip_all "$(tail -n 1 "$O/emulated/why")"
	plain_make -j"$(nproc)" emulated >"$O/emulated/make.log" 2>&1 || { sed 's/^/# /' "$O/emulated/make.log" && exit 1; }
fi

# As many at once as there are processors, the longest first.
export -f run retell
export O
{
	echo "off $decoding $O/$decoding $cases"
	for test in $tests; do
		echo "off $test $O/$test"
	done
	echo "on core/ops/attention_bf16_test $O/core/ops/attention_bf16_test $cases"
	echo "off core/ops/attention_bf16_test.groups env KABLATE_EMULATED_WGMMA=on $O/core/ops/attention_bf16_test $cases"
	for test in $races; do
		echo "on $test $O/$test"
	done
	echo "off $emulation $O/emulated/$emulation"
} | xargs -P "$(nproc)" -L 1 bash -c 'run "$@"' run
