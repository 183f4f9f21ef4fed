/*
 * Any library that offers cblas_sgemm() and cblas_dgemm() can be linked.
 * Functions that only one library has are looked up by name at run time.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "core/backend/cpu/blas.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cblas.h>

#define CORE_VARIABLE "OPENBLAS_CORETYPE"

/* openblas_get_parallel(): 0 serial, 2 OpenMP, and */
#define OPENBLAS_OWN_THREADS 1

static int blas_int(int64_t size)
{
	assert(size >= 0 && size <= INT_MAX);
	return (int)size;
}

void blas_gemm_f32(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
		   const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
		   int64_t ldc)
{
	cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
		    trans_b ? CblasTrans : CblasNoTrans, blas_int(m), blas_int(n), blas_int(k),
		    alpha, a, blas_int(lda), b, blas_int(ldb), beta, c, blas_int(ldc));
}

void blas_gemm_f64(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha,
		   const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
		   double *c, int64_t ldc)
{
	cblas_dgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
		    trans_b ? CblasTrans : CblasNoTrans, blas_int(m), blas_int(n), blas_int(k),
		    alpha, a, blas_int(lda), b, blas_int(ldb), beta, c, blas_int(ldc));
}

static void *library_function(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

void blas_set_threads(int threads)
{
	void (*openblas)(int) = library_function("openblas_set_num_threads");
	void (*mkl)(int) = library_function("MKL_Set_Num_Threads");
	void (*blis)(int64_t) = library_function("bli_thread_set_num_threads");

	if (openblas)
		openblas(threads);
	if (mkl)
		mkl(threads);
	if (blis)
		blis(threads);
}

/* ------------------------------------------------------------- description */

static const char *threading_name(int parallel)
{
	return parallel == 0 ? "serial" : parallel == OPENBLAS_OWN_THREADS ? "pthread" : "openmp";
}

static bool describe_openblas(char text[BLAS_DESCRIPTION_TEXT])
{
	char *(*config)(void) = library_function("openblas_get_config");
	char *(*core)(void) = library_function("openblas_get_corename");
	int (*parallel)(void) = library_function("openblas_get_parallel");
	char name[32] = "OpenBLAS", version[32] = "";

	if (!config || !core || !parallel)
		return false;
	sscanf(config(), "%31s %31s", name, version); /* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
	snprintf(text, BLAS_DESCRIPTION_TEXT, "%s %s %s %s", name, version, core(),
		 threading_name(parallel()));
	return true;
}

static bool describe_blis(char text[BLAS_DESCRIPTION_TEXT])
{
	char *(*version)(void) = library_function("bli_info_get_version_str");
	int (*core)(void) = library_function("bli_arch_query_id");
	char *(*core_name)(int) = library_function("bli_arch_string");

	if (!version || !core || !core_name)
		return false;
	snprintf(text, BLAS_DESCRIPTION_TEXT, "BLIS %s %s", version(), core_name(core()));
	return true;
}

static bool describe_mkl(char text[BLAS_DESCRIPTION_TEXT])
{
	void (*version)(char *, int) = library_function("MKL_Get_Version_String");

	if (!version)
		return false;
	memset(text, 0, BLAS_DESCRIPTION_TEXT);
	version(text, BLAS_DESCRIPTION_TEXT - 1); /* padded with blanks, not ended */
	for (size_t end = strlen(text); end > 0 && text[end - 1] == ' '; end--)
		text[end - 1] = '\0';
	return true;
}

const char *blas_description(char text[BLAS_DESCRIPTION_TEXT])
{
	if (!describe_openblas(text) && !describe_blis(text) && !describe_mkl(text))
		snprintf(text, BLAS_DESCRIPTION_TEXT, "unknown BLAS");
	return text;
}

/* ------------------------------------------------------------------ its buffers */

/* Of OpenBLAS 0.3.21 on x86-64, per thread: the largest buffer that it has for any core. */
#define BUFFER_BYTES (128 << 20)

/* Buffers taken while OpenBLAS loads serve one calling thread; several threads take more. */
double blas_buffer_bytes(int threads)
{
	return threads > 1 ? (double)BUFFER_BYTES * threads : 0;
}

static bool is_limited(int resource)
{
	struct rlimit limit;

	return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* Is there room for a buffer per thread?  Takes them all, and gives them back. */
static bool have_room(long threads)
{
	void *buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	bool more;

	if (buffer == MAP_FAILED)
		return false;
	more = threads <= 1 || have_room(threads - 1);
	munmap(buffer, BUFFER_BYTES);
	return more;
}

/* The C library may not know the environment yet. */
static long wanted_threads(char **environment)
{
	static const char name[] = "OMP_NUM_THREADS=";

	for (; *environment; environment++)
		if (strncmp(*environment, name, sizeof(name) - 1) == 0)
			return atol(*environment + sizeof(name) - 1);
	return 0;
}

static void refuse(const char *text)
{
	(void)!write(STDERR_FILENO, text, strlen(text));
	_exit(EXIT_FAILURE);
}

/*
 * OpenBLAS takes its buffers while it loads, and tries for ever if it gets none.  So this program
 * tries first.
 */
static void refuse_without_buffers(char **environment)
{
	long threads;

	if ((!is_limited(RLIMIT_AS) && !is_limited(RLIMIT_DATA)) ||
	    !library_function("openblas_get_config"))
		return;
	threads = wanted_threads(environment);
	if (have_room(threads > 0 ? threads : sysconf(_SC_NPROCESSORS_ONLN)))
		return;
	refuse("kablate: the limits of address space or data (ulimit -v, ulimit -d) leave no room "
	       "for the buffers of OpenBLAS, 128 MiB per processor: raise them, or set "
	       "OMP_NUM_THREADS=1\n");
}

/* Kernels keep up to 32 KiB on the stack.  Threads get as much as the limit was at the start. */
#define STACK_BYTES (1 << 20)

static bool enlarge_stack(struct rlimit limit)
{
	pthread_attr_t attributes;

	limit.rlim_cur = STACK_BYTES;
	if (limit.rlim_max < STACK_BYTES)
		limit.rlim_max = STACK_BYTES; /* only root may */
	return setrlimit(RLIMIT_STACK, &limit) == 0 && pthread_attr_init(&attributes) == 0 &&
	       pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0 &&
	       pthread_setattr_default_np(&attributes) == 0;
}

static void refuse_without_stack(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_BYTES &&
	    !enlarge_stack(limit))
		refuse("kablate: the limit of the stack (ulimit -s) is below 1024 KiB: raise it\n");
}

/* Functions in .preinit_array run before the constructors of libraries. */
static void check_limits(int argc, char **argv, char **environment)
{
	(void)argc, (void)argv;
	refuse_without_stack();
	refuse_without_buffers(environment);
}

__attribute__((section(".preinit_array"),
	       used)) static void (*const before_libraries)(int argc, char **argv,
							    char **environment) = check_limits;

/* ---------------------------------------------------- the choice of kernels */

static struct cpu_features cpu_features(void)
{
	struct cpu_features cpu = { false, false, false };

#ifdef __x86_64__
	__builtin_cpu_init();
	cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	cpu.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
		     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		     __builtin_cpu_supports("avx512vl");
	cpu.bf16 = __builtin_cpu_supports("avx512bf16");
#endif
	return cpu;
}

enum vector_level { LEVEL_SSE, LEVEL_AVX2, LEVEL_AVX512 };

/* OpenBLAS' name of a core, and the widest vectors that its kernels for it use. */
static enum vector_level core_level(const char *core)
{
	static const struct {
		const char *name;
		enum vector_level level;
	} cores[] = {
		{ "Haswell", LEVEL_AVX2 },	    { "Zen", LEVEL_AVX2 },
		{ "SkylakeX", LEVEL_AVX512 },	    { "Cooperlake", LEVEL_AVX512 },
		{ "SapphireRapids", LEVEL_AVX512 },
	};

	for (size_t i = 0; i < sizeof(cores) / sizeof(cores[0]); i++)
		if (strcasecmp(core, cores[i].name) == 0)
			return cores[i].level;
	return LEVEL_SSE;
}

/*
 * OpenBLAS 0.3.21 takes an Intel CPU it does not know (family 6, model 207)
 * for a Prescott: sgemm then runs at 36 GFLOP/s where SkylakeX and Cooperlake
 * reach 200 to 285.  On aarch64 there is nothing to gain: the generic armv8 kernels
 * came within 3% of neoversev1, OpenBLAS' choice for the CPU that was measured.
 */
const char *blas_better_core(const char *core, const struct cpu_features *cpu)
{
	enum vector_level level = core_level(core);

	if (cpu->avx512)
		return level == LEVEL_AVX512 ? NULL : cpu->bf16 ? "Cooperlake" : "SkylakeX";
	if (cpu->avx2)
		return level == LEVEL_AVX2 ? NULL : "Haswell";
	return NULL;
}

/*
 * No message: blas_description() tells which kernels run.  Without the variable the next process
 * would start again, too.
 */
static void start_again(char **argv, const char *better)
{
	if (setenv(CORE_VARIABLE, better, 1) == 0)
		execv("/proc/self/exe", argv);
	perror("kablate: cannot start again, so the slow kernels are used");
	unsetenv(CORE_VARIABLE);
}

void blas_start(char **argv)
{
	char *(*config)(void) = library_function("openblas_get_config");
	char *(*core)(void) = library_function("openblas_get_corename");
	int (*parallel)(void) = library_function("openblas_get_parallel");
	struct cpu_features cpu = cpu_features();

	/* A variable that is set, by the user or by us, stays: so there is no loop. */
	if (config && core && strstr(config(), "DYNAMIC_ARCH") && !getenv(CORE_VARIABLE)) {
		const char *better = blas_better_core(core(), &cpu);

		if (better)
			start_again(argv, better);
	}
	if (parallel && parallel() == OPENBLAS_OWN_THREADS)
		fprintf(stderr,
			"kablate: this OpenBLAS has threads of its own, which compete with those of "
			"OpenMP: slow; use its OpenMP build (Debian: libopenblas-openmp-dev)\n");
}
