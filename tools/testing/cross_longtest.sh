#!/bin/bash
# The kernels and products of the other architecture: their tests are compiled for it and run
# under emulation (make check-cross).  Where that cannot be, each is skipped by name, with the
# reason; so is what only real hardware runs.
set -uo pipefail
O=$(realpath "${O:-build}")
tests="core/backend/cpu/blas_test core/backend/cpu/elementwise_test core/backend/cpu/panel_test
	core/backend/cpu/gemm_test core/backend/cpu/real_test core/ops/op_test core/ops/attention_test
	core/ops/fused_test core/util/rng_test models/test_vector_test"

skip_all() { # WHY
	local test

	for test in $tests; do
		echo "ok $test emulated # SKIP $1"
	done
	exit 0
}

# The program's own lines, under its name.  (cmocka prints "not ok N # SKIP NAME", after the reason.)
retell() { # TEST
	sed -nE -e '/^# why: /{s///;h}' \
		-e "/^(not )?ok [0-9]+ # SKIP (.*)/{s//ok $1 \2 emulated for $machine # SKIP /;G;s/\n//p}" \
		-e "s|^((not )?ok) [0-9]+ - (.*)|\1 $1 \3 emulated for $machine|p" "$2"
}

mkdir -p "$O/foreign" || exit 1
prepared=$(bash tools/testing/foreign.sh "$O/foreign" 2>"$O/foreign/why") ||
	skip_all "$(tail -n 1 "$O/foreign/why")"
machine=
eval "$prepared"
export CC BLAS_CFLAGS BLAS_LIBS PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR

# As a user would call it, but for the compiler and the libraries, and as a sample: two entries of each
# gradient (a central difference runs the same kernels again for every entry), each model in one precision,
# fewer points of the approximations.
KABLATE_TEST_ENTRIES=2 env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u TIER -u SANITIZE make -j"$(nproc)" \
	O="$O/foreign/build" CC="$CC" AR="$machine-linux-gnu-ar" PORTABLE=1 NO_INSTALL=1 \
	EMULATOR="$EMULATOR" TEST_SECONDS=300 T="$tests" check >"$O/foreign/check.log" 2>&1
status=$?
for test in $tests; do
	log=$O/foreign/build/$test.result.log
	if [ ! -e "$log" ]; then
		echo "not ok $test emulated for $machine: it was not built"
		continue
	fi
	retell "$test" "$log"
done
[ $status -eq 0 ] || { sed 's/^/# /' "$O/foreign/check.log" && exit 1; }
