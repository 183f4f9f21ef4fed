/*
 * Tests of the emulated GPU: it detects the errors that it exists for, each planted in a kernel,
 * and it computes what the PTX ISA defines.  Each case runs in a process of its own, because a
 * device is unusable after an error.
 */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/backend/cuda/primitives/ptx.cuh"
#include "core/backend/cuda/device/launch.cuh"
#include "core/backend/cuda/primitives/wgmma.cuh"

#define THREADS 64

/* launch_kernel() for kernels that know no replicas. */
template <typename... Parameters, typename... Arguments>
static void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes,
		   cudaStream_t stream, const Arguments &...arguments)
{
	const std::tuple<Parameters...> copies(arguments...);

	emulated_launch(stream, (const void *)kernel,
			{ __PRETTY_FUNCTION__, blocks, dim3((unsigned)threads), bytes,
			  [=] { std::apply(kernel, copies); } });
}

struct gpu {
	cudaStream_t stream;
	float *memory; /* THREADS elements, not initialised */

	gpu()
	{
		cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
		cudaMalloc(&memory, THREADS * sizeof(*memory));
	}
	template <typename... P> void run(void (*kernel)(P...), int bytes = 0)
	{
		launch(kernel, 1, THREADS, bytes, stream, memory);
	}
	cudaError_t wait(void)
	{
		return cudaStreamSynchronize(stream);
	}
	/* Does the work fail with this message? */
	bool fails(const char *message)
	{
		const cudaError_t error = wait();
		const bool right = error == cudaErrorLaunchFailure &&
				   strstr(cudaGetErrorString(error), message);

		if (!right)
			printf("# error %d: %s\n", error, cudaGetErrorString(error));
		return right;
	}
};

/* -------------------------------------------------------------------- parameters */

struct padded {
	int64_t first;
	void *at;
	bool is_set;
};

struct with_list {
	int n;
	struct padded list[4];
	struct padded last;
};

static void mark(char (&used)[sizeof(struct with_list)], size_t offset)
{
	memset(used + offset, 0x55, offsetof(struct padded, is_set) + sizeof(bool));
}

static bool padding_alone_is_cleared(void)
{
	char used[sizeof(struct with_list)] = {};
	union parameter<struct with_list> p;

	memset(used, 0x55, sizeof(int));
	for (int i = 0; i < 4; i++)
		mark(used, offsetof(struct with_list, list) + (size_t)i * sizeof(struct padded));
	mark(used, offsetof(struct with_list, last));
	memset((void *)&p, 0x55, sizeof(p));
	__builtin_clear_padding(&p);
	return memcmp(&p, used, sizeof(used)) == 0;
}

static void look_for_races(void)
{
	setenv("KABLATE_EMULATED_RACES", "on", 1);
}

/* -------------------------------------------------------------------- barriers */

static void reverse_kernel(float *x)
{
	__shared__ float shared[THREADS];

	shared[threadIdx.x] = (float)threadIdx.x;
	__syncthreads();
	x[threadIdx.x] = shared[THREADS - 1 - threadIdx.x];
}

static bool barrier_orders_threads(void)
{
	struct gpu g;

	look_for_races();
	g.run(reverse_kernel);
	if (g.wait() != cudaSuccess)
		return false;
	for (int i = 0; i < THREADS; i++)
		if (g.memory[i] != (float)(THREADS - 1 - i))
			return false;
	return true;
}

static void reverse_without_barrier(float *x)
{
	__shared__ float shared[THREADS];

	shared[threadIdx.x] = (float)threadIdx.x;
	x[threadIdx.x] = shared[THREADS - 1 - threadIdx.x];
}

static bool missing_barrier_gives_nan(void)
{
	struct gpu g;

	g.run(reverse_without_barrier);
	return g.wait() == cudaSuccess && isnan(g.memory[0]);
}

static bool missing_barrier_is_a_race(void)
{
	struct gpu g;

	look_for_races();
	g.run(reverse_without_barrier);
	return g.fails("race");
}

static void blocks_write_one_number(float *x)
{
	x[0] = (float)blockIdx.x;
}

static bool blocks_that_race(void)
{
	struct gpu g;

	look_for_races();
	launch(blocks_write_one_number, 2, 1, 0, g.stream, g.memory);
	return g.fails("race");
}

static void barrier_of_some(float *)
{
	if (threadIdx.x < 10)
		__syncthreads();
}

static bool barrier_that_some_threads_pass_by(void)
{
	struct gpu g;

	g.run(barrier_of_some);
	return g.fails("ended");
}

static void barrier_or_shuffle(float *x)
{
	if (threadIdx.x < 10)
		__syncthreads();
	else
		x[0] = __shfl_xor_sync(0xffffffffu, x[0], 1);
}

static bool threads_that_wait_for_each_other(void)
{
	struct gpu g;

	launch(barrier_or_shuffle, 1, 32, 0, g.stream, g.memory);
	return g.fails("not all threads of the warp");
}

static void two_barriers(float *)
{
	if (threadIdx.x % 2)
		__syncthreads();
	else
		__syncthreads();
}

static bool two_barriers_at_once(void)
{
	struct gpu g;

	g.run(two_barriers);
	return g.fails("another barrier");
}

static void shuffle_of_some(float *x)
{
	if (threadIdx.x % 32 < 8)
		x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0F, 1);
}

static bool shuffle_without_some_lanes(void)
{
	struct gpu g;

	g.run(shuffle_of_some);
	return g.fails("not all threads of the warp");
}

/* ---------------------------------------------------------------------- memory */

static void copy_itself(float *x)
{
	x[threadIdx.x] += 1;
}

static bool unset_memory_is_nan(void)
{
	struct gpu g;

	g.run(copy_itself);
	return g.wait() == cudaSuccess && isnan(g.memory[0]) && isnan(g.memory[THREADS - 1]);
}

static void read_beyond_shared(float *x)
{
	float vec[4];

	ld_shared_vec16(vec, smem_address(dynamic_smem()) + 16 * threadIdx.x);
	x[threadIdx.x] = vec[0];
}

static bool address_outside_shared_memory(void)
{
	struct gpu g;

	g.run(read_beyond_shared, 16 * THREADS - 16);
	return g.fails("outside the shared memory");
}

static void write_beyond(float *x)
{
	x[threadIdx.x + 1] = 0;
}

/* Only a sanitizer detects it, and ends the process. */
static bool address_outside_device_memory(void)
{
	struct gpu g;

	g.run(write_beyond);
	g.wait();
	return false;
}

static void write_beyond_variable(float *x)
{
	__shared__ float shared[THREADS];

	shared[threadIdx.x + 1] = 0;
	x[threadIdx.x] = shared[threadIdx.x];
}

static bool address_outside_shared_variable(void)
{
	struct gpu g;

	g.run(write_beyond_variable);
	g.wait();
	return false;
}

static void copy_late(float *x)
{
	char *shared = dynamic_smem();

	cp_async_element(smem_address(shared) + 4 * threadIdx.x, x + threadIdx.x, true);
	cp_async_commit();
	x[threadIdx.x] = ((float *)shared)[threadIdx.x];
}

static bool missing_wait_for_a_copy(void)
{
	struct gpu g;
	float ones[THREADS];

	for (float &one : ones)
		one = 1;
	look_for_races();
	cudaMemcpyAsync(g.memory, ones, sizeof(ones), cudaMemcpyHostToDevice, g.stream);
	g.run(copy_late, sizeof(ones));
	return g.fails("race");
}

/* -------------------------------------------------------------------- products */

#define WARPGROUP 128			       /* threads of a warpgroup */
#define OPERAND_BYTES (64 * SWIZZLE_ROW_BYTES) /* an operand of 64 rows of 64 elements */
#define ONES 0x3f803f80u		       /* two ones in bfloat16 */

/* Starts x = a 1, where a is all ones: each element of x becomes 16. */
static void begin_ones(float (&x)[1][8][4], const uint32_t (&left)[4])
{
	const uint32_t at = smem_address(dynamic_smem());

	for (int i = (int)threadIdx.x; i < OPERAND_BYTES / 4; i += WARPGROUP)
		((uint32_t *)dynamic_smem())[i] = ONES;
	__syncthreads();
	memset(x, 0, sizeof(x));
	wgmma_fence();
	wgmma(x[0], left, smem_descriptor(at, OPERAND_BYTES));
	wgmma_commit();
}

static void wait_for_product(float *out)
{
	const uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
	wgmma_wait<0>(x);
	out[threadIdx.x % THREADS] = x[0][7][3];
}

static bool products_are_there_after_the_wait(void)
{
	struct gpu g;

	look_for_races();
	launch(wait_for_product, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.wait() == cudaSuccess && g.memory[THREADS - 1] == 16;
}

static void read_product_early(float *out)
{
	const uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
	out[threadIdx.x % THREADS] = x[0][7][3];
	wgmma_wait<0>(x);
}

static bool product_read_too_early_is_nan(void)
{
	struct gpu g;

	launch(read_product_early, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.wait() == cudaSuccess && isnan(g.memory[0]);
}

static void forget_product(float *)
{
	const uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
}

static bool missing_wait_for_a_product(void)
{
	struct gpu g;

	launch(forget_product, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.fails("products are in flight");
}

static void wait_too_little(float *)
{
	const uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
	wgmma_wait<1>(x);
}

static bool wait_that_leaves_the_product(void)
{
	struct gpu g;

	launch(wait_too_little, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.fails("still in flight");
}

static void change_left_factor(float *)
{
	uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
	left[0] = 0;
	wgmma_wait<0>(x);
}

static bool left_factor_that_changes(void)
{
	struct gpu g;

	launch(change_left_factor, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.fails("left operand");
}

static void overwrite_right_factor(float *out)
{
	const uint32_t left[4] = { ONES, ONES, ONES, ONES };
	float x[1][8][4];

	begin_ones(x, left);
	__syncthreads();
	((uint32_t *)dynamic_smem())[threadIdx.x] = 0;
	__syncthreads();
	wgmma_wait<0>(x);
	out[threadIdx.x % THREADS] = x[0][7][3];
}

static bool right_factor_that_changes(void)
{
	struct gpu g;

	look_for_races();
	launch(overwrite_right_factor, 1, WARPGROUP, OPERAND_BYTES, g.stream, g.memory);
	return g.fails("race");
}

/* ------------------------------------------------------------------------ host */

static bool host_changes_what_is_to_be_read(void)
{
	struct gpu g;
	float x = 1;

	cudaMemcpyAsync(g.memory, &x, sizeof(x), cudaMemcpyHostToDevice, g.stream);
	x = 2;
	return g.wait() == cudaSuccess && g.memory[0] == 2;
}

static bool impossible_launches(void)
{
	struct gpu g;

	launch(copy_itself, 1, 1025, 0, g.stream, g.memory);
	if (cudaGetLastError() != cudaErrorInvalidConfiguration)
		return false;
	launch(copy_itself, 0, 1, 0, g.stream, g.memory);
	if (cudaGetLastError() != cudaErrorInvalidConfiguration)
		return false;
	launch(copy_itself, 1, 1, 64 << 10, g.stream, g.memory);
	if (cudaGetLastError() != cudaErrorInvalidConfiguration)
		return false;
	cudaFuncSetAttribute(copy_itself, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10);
	launch(copy_itself, 1, 1, 64 << 10, g.stream, g.memory);
	return g.wait() == cudaSuccess;
}

static bool captured_work_waits_for_its_replay(void)
{
	struct gpu g;
	cudaGraphExec_t executable;
	cudaGraph_t graph;

	cudaMemsetAsync(g.memory, 0, THREADS * sizeof(float), g.stream);
	cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal);
	g.run(copy_itself);
	cudaStreamEndCapture(g.stream, &graph);
	cudaGraphInstantiate(&executable, graph, 0);
	cudaGraphDestroy(graph);
	if (g.wait() != cudaSuccess || g.memory[5] != 0)
		return false;
	for (int i = 0; i < 3; i++)
		cudaGraphLaunch(executable, g.stream);
	return g.wait() == cudaSuccess && g.memory[5] == 3;
}

static bool capture_forbids_to_wait(void)
{
	struct gpu g;
	cudaGraph_t graph;

	cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal);
	return g.wait() == cudaErrorStreamCaptureUnsupported &&
	       cudaStreamEndCapture(g.stream, &graph) == cudaErrorStreamCaptureInvalidated;
}

/* ---------------------------------------------------------------------- streams */

/* Another stream writes 1, then the first stream doubles its elements. */
struct two_streams {
	struct gpu g;
	cudaStream_t other;
	cudaEvent_t started, done;

	two_streams()
	{
		cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
		cudaEventCreateWithFlags(&started, cudaEventDisableTiming);
		cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
	}
	void ask(bool fork, bool join)
	{
		cudaMemsetAsync(g.memory, 0, THREADS * sizeof(float), g.stream);
		cudaEventRecord(started, g.stream);
		if (fork)
			cudaStreamWaitEvent(other, started, 0);
		launch(copy_itself, 1, THREADS, 0, other, g.memory);
		cudaEventRecord(done, other);
		if (join)
			cudaStreamWaitEvent(g.stream, done, 0);
		g.run(copy_itself);
	}
	bool gives(float wanted)
	{
		return g.wait() == cudaSuccess && g.memory[5] == wanted;
	}
};

static bool events_order_streams(void)
{
	struct two_streams s;

	s.ask(true, true);
	return s.gives(2);
}

static bool missing_wait_of_a_stream(void)
{
	struct two_streams s;

	s.ask(true, false);
	return s.gives(1);
}

static bool missing_wait_of_a_stream_that_hurries(void)
{
	look_for_races();
	struct two_streams s;

	s.ask(false, true);
	return s.gives(1);
}

static bool streams_are_captured_together(void)
{
	struct two_streams s;
	cudaGraphExec_t executable;
	cudaGraph_t graph;

	cudaStreamBeginCapture(s.g.stream, cudaStreamCaptureModeThreadLocal);
	s.ask(true, true);
	if (cudaStreamEndCapture(s.g.stream, &graph) != cudaSuccess)
		return false;
	cudaGraphInstantiate(&executable, graph, 0);
	for (int i = 0; i < 3; i++)
		cudaGraphLaunch(executable, s.g.stream);
	return s.gives(2);
}

static bool captured_streams_must_join(void)
{
	struct two_streams s;
	cudaGraph_t graph;

	cudaStreamBeginCapture(s.g.stream, cudaStreamCaptureModeThreadLocal);
	s.ask(true, false);
	return cudaStreamEndCapture(s.g.stream, &graph) == cudaErrorStreamCaptureUnjoined;
}

/* ---------------------------------------------------------------- instructions */

#define SIDE 16

/* a [16, 16] and b [16, 16] in bfloat16 in shared memory, read as PTX defines. */
static void multiply_kernel(const float *a, const float *b, float *out)
{
	__nv_bfloat16 *shared = (__nv_bfloat16 *)dynamic_smem();
	const int lane = (int)threadIdx.x;
	uint32_t left[4], right[4];
	float d[2][4] = {};

	for (int i = lane; i < SIDE * SIDE; i += 32) {
		shared[i] = a[i];
		shared[SIDE * SIDE + i] = b[i];
	}
	__syncwarp();
	ldmatrix(left, smem_address(shared + lane % 16 * SIDE + lane / 16 * 8));
	ldmatrix_trans(right,
		       smem_address(shared + SIDE * SIDE + lane % 16 * SIDE + lane / 16 * 8));
	mma(d[0], left, right[0], right[1]);
	mma(d[1], left, right[2], right[3]);
	for (int n = 0; n < 2; n++)
		for (int e = 0; e < 4; e++)
			out[(lane / 4 + 8 * (e / 2)) * SIDE + 8 * n + 2 * (lane % 4) + e % 2] =
				d[n][e];
}

static bool tensor_cores_multiply(void)
{
	struct gpu g;
	float *a, *b, *c;
	const size_t bytes = SIDE * SIDE * sizeof(float);

	cudaMalloc(&a, bytes);
	cudaMalloc(&b, bytes);
	cudaMalloc(&c, bytes);
	for (int i = 0; i < SIDE * SIDE; i++) { /* integers, so sums are exact in any order */
		a[i] = (float)(i * 7 % 31 - 15);
		b[i] = (float)(i * 11 % 29 - 14);
	}
	look_for_races();
	launch(multiply_kernel, 1, 32, 2 * SIDE * SIDE * 2, g.stream, a, b, c);
	if (g.wait() != cudaSuccess)
		return false;
	for (int i = 0; i < SIDE; i++)
		for (int j = 0; j < SIDE; j++) {
			float sum = 0;

			for (int k = 0; k < SIDE; k++)
				sum += a[i * SIDE + k] * b[k * SIDE + j];
			if (c[i * SIDE + j] != sum)
				return false;
		}
	return true;
}

static bool rounds_to_even(void)
{
	const struct {
		float x, rounded;
	} cases[] = { { 1, 1 },
		      { 1 + 0x1p-8F, 1 },
		      { 1 + 3 * 0x1p-8F, 1 + 0x1p-6F },
		      { 1 + 0x1.1p-8F, 1 + 0x1p-7F },
		      { -INFINITY, -INFINITY },
		      { 0x1.ffp127F, INFINITY } };

	for (const auto &c : cases)
		if ((float)(__nv_bfloat16)c.x != c.rounded)
			return false;
	return isnan((float)(__nv_bfloat16)NAN);
}

/* ------------------------------------------------------------------------ main */

enum end { HOLDS, ENDED_BY_SANITIZER };

static const struct {
	const char *name;
	bool (*holds)(void);
	enum end end;
} tests[] = {
#define TEST(name)                 \
	{                          \
#name, name, HOLDS \
	}
#define SANITIZED(name)                         \
	{                                       \
#name, name, ENDED_BY_SANITIZER \
	}
	TEST(barrier_orders_threads),
	TEST(missing_barrier_gives_nan),
	TEST(missing_barrier_is_a_race),
	TEST(blocks_that_race),
	TEST(barrier_that_some_threads_pass_by),
	TEST(threads_that_wait_for_each_other),
	TEST(two_barriers_at_once),
	TEST(shuffle_without_some_lanes),
	TEST(unset_memory_is_nan),
	TEST(address_outside_shared_memory),
	SANITIZED(address_outside_device_memory),
	SANITIZED(address_outside_shared_variable),
	TEST(missing_wait_for_a_copy),
	TEST(padding_alone_is_cleared),
	TEST(products_are_there_after_the_wait),
	TEST(product_read_too_early_is_nan),
	TEST(missing_wait_for_a_product),
	TEST(wait_that_leaves_the_product),
	TEST(left_factor_that_changes),
	TEST(right_factor_that_changes),
	TEST(host_changes_what_is_to_be_read),
	TEST(impossible_launches),
	TEST(captured_work_waits_for_its_replay),
	TEST(capture_forbids_to_wait),
	TEST(events_order_streams),
	TEST(missing_wait_of_a_stream),
	TEST(missing_wait_of_a_stream_that_hurries),
	TEST(streams_are_captured_together),
	TEST(captured_streams_must_join),
	TEST(tensor_cores_multiply),
	TEST(rounds_to_even),
};

/* Runs the case in a child process and returns its exit status. */
static int status_of(bool (*holds)(void), bool quiet)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		if (quiet && !freopen("/dev/null", "w", stderr))
			_exit(2);
		const bool right = holds();

		fflush(stdout);
		_exit(right ? 0 : 2);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
	bool all = true;

	for (const auto &t : tests) {
		bool right;

#ifndef __SANITIZE_ADDRESS__
		if (t.end == ENDED_BY_SANITIZER) {
			printf("ok %s # SKIP built without SANITIZE=address\n", t.name);
			continue;
		}
#endif
		right = t.end == HOLDS ? status_of(t.holds, false) == 0
				       : status_of(t.holds, true) == 1;
		printf("%s %s\n", right ? "ok" : "not ok", t.name);
		all = all && right;
	}
	return all ? 0 : 1;
}
