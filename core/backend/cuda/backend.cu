/*
 * The CUDA backend: device memory, copies, streams, CUDA graphs, and the tables of kernels.
 *
 * It is a shared library of its own.  core/backend/open.c loads it, so programs also start on a
 * machine without CUDA.  All work is asynchronous: a call queues it on the current stream and
 * returns.  The first error of any call stays in the context until cuda_check() or cuda_wait()
 * reports it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/slabs.cuh"
#include "core/backend/cuda/gemm/epilogue.cuh"
#include "core/backend/cuda/decode/fused_decode.cuh"

extern "C" {
#include "core/optim/kernels.h"

/* Weak: an op without a kernel is NULL in the tables. */
#define X(name)                                                                                 \
	extern __attribute__((weak)) const struct kernels cuda_##name##_f32, cuda_##name##_f64, \
		cuda_##name##_bf16;
OP_LIST(X)
#undef X
extern const struct optim_kernels cuda_optim_f32, cuda_optim_f64;
}

/* One table per precision, in the order of enum op_id. */
static const struct kernels *const kernels_f32[OP_COUNT] = {
#define X(name) &cuda_##name##_f32,
	OP_LIST(X)
#undef X
};

static const struct kernels *const kernels_f64[OP_COUNT] = {
#define X(name) &cuda_##name##_f64,
	OP_LIST(X)
#undef X
};

static const struct kernels *const kernels_bf16[OP_COUNT] = {
#define X(name) &cuda_##name##_bf16,
	OP_LIST(X)
#undef X
};

static const struct kernels *const *cuda_kernels(enum dtype type)
{
	return type == F32 ? kernels_f32 : type == F64 ? kernels_f64 : NULL;
}

static const struct kernels *const *cuda_kernels_bf16(enum dtype type)
{
	return type == F32 ? kernels_bf16 : cuda_kernels(type);
}

static const struct optim_kernels *cuda_optim(enum dtype type)
{
	return type == F32 ? &cuda_optim_f32 : &cuda_optim_f64;
}

/* ------------------------------------------------------------------ errors */

void cuda_note(struct cuda_context *g, cudaError_t error, const char *where)
{
	if (error == cudaSuccess || g->failed)
		return;
	g->failed = true;
	snprintf(g->err.text, sizeof(g->err.text), "GPU: %s: %s", where, cudaGetErrorString(error));
}

void cuda_note_blas(struct cuda_context *g, cublasStatus_t status, const char *where)
{
	if (status == CUBLAS_STATUS_SUCCESS || g->failed)
		return;
	g->failed = true;
	snprintf(g->err.text, sizeof(g->err.text), "GPU: %s: %s", where,
		 cublasGetStatusString(status));
}

static struct cuda_context *context(const struct backend *b)
{
	return (struct cuda_context *)b->context;
}

static enum status cuda_check(const struct backend *b, struct error *err)
{
	if (!context(b)->failed)
		return OK;
	*err = context(b)->err;
	return FAIL;
}

static enum status cuda_wait(const struct backend *b, struct error *err)
{
	cuda_note(context(b), cudaStreamSynchronize(context(b)->stream), "waiting");
	return cuda_check(b, err);
}

/* -------------------------------------------------------------------- memory */

/* CUDA's limit on the pitch of 2D copies. */
#define MAX_PITCH ((size_t)INT32_MAX)

static bool add_block(struct cuda_context *g, void *at, size_t bytes)
{
	if (g->n_blocks == g->block_capacity) {
		const int capacity = 2 * g->block_capacity + 64;
		void *list = realloc(g->blocks, (size_t)capacity * sizeof(*g->blocks));

		if (!list)
			return false;
		g->blocks = (struct block *)list;
		g->block_capacity = capacity;
	}
	g->blocks[g->n_blocks++] = { at, bytes };
	g->allocated += bytes;
	g->peak = g->allocated > g->peak ? g->allocated : g->peak;
	return true;
}

static void remove_block(struct cuda_context *g, const void *at)
{
	for (int i = g->n_blocks - 1; i >= 0; i--)
		if (g->blocks[i].at == at) {
			g->allocated -= g->blocks[i].bytes;
			g->blocks[i] = g->blocks[--g->n_blocks];
			return;
		}
}

/* The caller reports too little memory, and goes on if it can; the context keeps other errors. */
static void *no_memory(struct cuda_context *g, cudaError_t error)
{
	cudaGetLastError();
	if (error != cudaErrorMemoryAllocation)
		cuda_note(g, error, "allocating memory");
	return NULL;
}

/* Sets memory of all replicas to zero. */
static void clear(struct cuda_context *g, void *device, size_t bytes, const char *where)
{
	const int count = replica_count(g->replicas);
	const size_t stride = replica_stride(g->replicas);

	if (count > 1 && stride <= MAX_PITCH) {
		cuda_note(g,
			  cudaMemset2DAsync(in_replica(g->replicas, device, 0), stride, 0, bytes,
					    (size_t)count, g->stream),
			  where);
		return;
	}
	for (int r = 0; r < count; r++)
		cuda_note(g,
			  cudaMemsetAsync(in_replica(g->replicas, device, r), 0, bytes, g->stream),
			  where);
}

static void *alloc_in_replicas(struct cuda_context *g, size_t bytes)
{
	void *memory = slabs_alloc(g, bytes);

	if (memory)
		clear(g, memory, bytes, "clearing memory");
	return memory;
}

static void *cuda_alloc(const struct backend *b, size_t bytes)
{
	struct cuda_context *g = context(b);
	cudaError_t error;
	void *memory;

	if (REPLICA_FORM)
		return alloc_in_replicas(g, bytes);
	error = cudaMalloc(&memory, bytes ? bytes : 1);
	if (error != cudaSuccess)
		return no_memory(g, error);
	if (!add_block(g, memory, bytes)) {
		cudaFree(memory);
		return NULL;
	}
	clear(g, memory, bytes, "clearing memory");
	return memory;
}

/* What kernels still read: as with cudaFree(), it is free once the device is done with it. */
static void cuda_release(const struct backend *b, void *memory)
{
	if (REPLICA_FORM) {
		if (memory)
			cuda_note(context(b), cudaDeviceSynchronize(), "releasing memory");
		slabs_release(context(b), memory);
		return;
	}
	remove_block(context(b), memory);
	cuda_note(context(b), cudaFree(memory), "releasing memory");
}

/* Copies host data into the pinned staging buffer, where it stays until the device has read it. */
static void *stage_upload(struct cuda_context *g, const void *host, size_t bytes)
{
	struct staging *s = &g->staging;
	void *copy;

	if (s->used + bytes > STAGING_HALF) {
		cuda_note(g, cudaEventRecord(s->read[s->half], g->stream), "upload");
		s->half = !s->half;
		s->used = 0;
		cuda_note(g, cudaEventSynchronize(s->read[s->half]), "upload");
	}
	copy = s->memory + (size_t)s->half * STAGING_HALF + s->used;
	s->used += (bytes + 63) / 64 * 64;
	memcpy(copy, host, bytes);
	return copy;
}

/* Pinned memory. */
static void *cuda_host_alloc(const struct backend *b, size_t bytes)
{
	void *memory;
	const cudaError_t error = cudaMallocHost(&memory, bytes ? bytes : 1);

	return error == cudaSuccess ? memory : no_memory(context(b), error);
}

static void cuda_host_release(const struct backend *b, void *memory)
{
	cuda_note(context(b), cudaFreeHost(memory), "releasing memory of the host");
}

/* Copies between the chosen replicas and the host, which has REPLICAS_EACH one after another. */
static void copy_chosen(struct cuda_context *g, void *device, void *host, size_t bytes,
			enum cudaMemcpyKind kind, const char *where)
{
	const bool to_device = kind == cudaMemcpyHostToDevice;
	const bool each = REPLICA_FORM && g->chosen == REPLICAS_EACH;
	const size_t stride = replica_stride(g->replicas);
	const int count = each ? replica_count(g->replicas) : 1;
	const int first = g->chosen > 0 ? g->chosen : 0;
	char *at = (char *)in_replica(g->replicas, device, first), *from = (char *)host;

	if (count > 1 && stride <= MAX_PITCH) {
		cuda_note(g,
			  cudaMemcpy2DAsync(to_device ? at : from, to_device ? stride : bytes,
					    to_device ? from : at, to_device ? bytes : stride,
					    bytes, (size_t)count, kind, g->stream),
			  where);
		return;
	}
	for (int r = 0; r < count; r++, at += stride, from += bytes)
		cuda_note(g,
			  cudaMemcpyAsync(to_device ? at : from, to_device ? from : at, bytes, kind,
					  g->stream),
			  where);
}

/* Copies from replica 0 to all: the address of one is no replica's own, so all kernels read it. */
static void spread(const struct backend *b, void *device, size_t bytes)
{
	const char *from = (const char *)in_replica(context(b)->replicas, device, 0);
	char *to = (char *)device;
	const bool in_words = ((uintptr_t)device | bytes) % sizeof(uint32_t) == 0;
	struct call c = {};

	c.backend = b;
	if (in_words)
		each(&c, (int64_t)(bytes / sizeof(uint32_t)), [=] __device__(int64_t i) {
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
		});
	else
		each(&c, (int64_t)bytes, [=] __device__(int64_t i) { to[i] = from[i]; });
}

/* Of the host, for so many of each chosen replica. */
static size_t host_bytes(const struct cuda_context *g, size_t bytes)
{
	return bytes * (g->chosen == REPLICAS_EACH ? (size_t)replica_count(g->replicas) : 1);
}

/* The caller may overwrite `host` as soon as this returns. */
static void cuda_upload(const struct backend *b, void *device, const void *host, size_t bytes)
{
	struct cuda_context *g = context(b);
	const size_t all = host_bytes(g, bytes);
	const bool staged = all <= STAGING_HALF / 2;

	copy_chosen(g, device, staged ? stage_upload(g, host, all) : (void *)(uintptr_t)host, bytes,
		    cudaMemcpyHostToDevice, "upload");
	if (g->chosen == REPLICAS_ALL && replica_count(g->replicas) > 1)
		spread(b, device, bytes);
	if (!staged)
		cuda_note(g, cudaStreamSynchronize(g->stream), "upload");
}

/* Zeros from a device that failed: callers use what they read, as a count too, before they check.
 */
static void cuda_download(const struct backend *b, void *host, const void *device, size_t bytes)
{
	struct cuda_context *g = context(b);

	copy_chosen(g, (void *)(uintptr_t)device, host, bytes, cudaMemcpyDeviceToHost, "download");
	cuda_note(g, cudaStreamSynchronize(g->stream), "download");
	if (g->failed)
		memset(host, 0, host_bytes(g, bytes));
}

static void cuda_zero(const struct backend *b, void *device, size_t bytes)
{
	context(b)->issued++;
	clear(context(b), device, bytes, "zeros");
}

static int cuda_choose_replica(const struct backend *b, int replica)
{
	const int before = context(b)->chosen;

	context(b)->chosen = replica;
	return before;
}

/* A view of rows of `row` elements that start `pitch` elements apart. */
template <typename P> struct strided_rows {
	input_view<P> x;
	int64_t row, pitch;

	__device__ typename P::real at(int64_t i) const
	{
		return x[i / row * pitch + i % row];
	}
};

/*
 * Block i writes to parts[i] the smallest index of a NaN or infinity in its share of the elements,
 * or infinity if it has none.
 */
template <typename P>
static __global__ void find_nonfinite_kernel(struct replicas replicas,
					     const __grid_constant__ strided_rows<P> given_rows,
					     int64_t n, double *parts)
{
	replicas.to_own(parts);
	const auto &rows = replicas.own(given_rows);
	const int64_t last = n * (blockIdx.x + 1) / SUM_PARTS;
	double first = INFINITY;

	for (int64_t i = n * blockIdx.x / SUM_PARTS + threadIdx.x; i < last; i += BLOCK)
		if (!isfinite(rows.at(i)) && (double)i < first)
			first = (double)i;
	first = -block_max(-first);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = first;
}

template <typename P>
static void launch_find_nonfinite(struct cuda_context *g, strided_rows<P> rows, int64_t n)
{
	launch_kernel(find_nonfinite_kernel<P>, SUM_PARTS, BLOCK, 0, stream_of(g), rows, n,
		      g->scalar + 1);
}

static __global__ void min_of_parts_kernel(struct replicas replicas, const double *parts,
					   double *out)
{
	replicas.to_own(parts, out);
	const double smallest = -block_max(-parts[threadIdx.x]);

	if (threadIdx.x == 0)
		*out = smallest;
}

/* The smallest result of the chosen replica, or of all. */
static double smallest_found(const struct backend *b)
{
	struct cuda_context *g = context(b);
	const int chosen = g->chosen, count = chosen < 0 ? replica_count(g->replicas) : 1;
	double first = INFINITY;

	if (chosen < 0)
		g->chosen = REPLICAS_EACH;
	cuda_download(b, g->found, g->scalar, sizeof(*g->found));
	g->chosen = chosen;
	for (int r = 0; r < count; r++)
		first = fmin(first, g->found[r]);
	return first;
}

static int64_t cuda_find_nonfinite(const struct backend *b, const void *device, enum dtype type,
				   int64_t rows, int64_t row, int64_t pitch)
{
	struct cuda_context *g = context(b);
	double first, *parts = g->scalar + 1;

	if (type == F64)
		launch_find_nonfinite<double_precision>(g, { { device, false }, row, pitch },
							rows * row);
	else
		launch_find_nonfinite<bfloat16_products>(
			g, { { device, type == BF16 }, row, pitch }, rows * row);
	launch_kernel(min_of_parts_kernel, 1, SUM_PARTS, 0, stream_of(g), parts, g->scalar);
	cuda_note(g, cudaPeekAtLastError(), "search for NaN");
	first = smallest_found(b);
	return isfinite(first) && !g->failed ? (int64_t)first : -1;
}

/* ------------------------------------------------- values and weights of a run */

static void cuda_begin_run(const struct backend *b, const struct run *runs)
{
	const int chosen = cuda_choose_replica(b, REPLICAS_EACH);

	cuda_upload(b, context(b)->run, runs, sizeof(*runs));
	cuda_choose_replica(b, chosen);
}

#define MAX_ROUNDED 120 /* parameters per launch: kernel arguments are limited to 4 KiB */

struct rounding_list {
	struct {
		int64_t before; /* vectors of the parameters in front of this one */
		int64_t count;
		const float *from;
		__nv_bfloat16 *to;
	} list[MAX_ROUNDED];
	int n;
	int64_t total; /* vectors of all parameters */

	__device__ int64_t before(int i) const
	{
		return list[i].before;
	}
};

static void launch_rounding(const struct backend *b, struct rounding_list *r)
{
	struct call c = {};

	c.backend = b;
	each_of_buffers(&c, *r, r->total,
			[=] __device__(const struct rounding_list &all, int at, int64_t i) {
				const int64_t first = (i - all.list[at].before) * VEC,
					      rest = all.list[at].count - first;
				const float *from = all.list[at].from + first;
				__nv_bfloat16 *to = all.list[at].to + first;

				if (rest >= VEC)
					store_vec(to, load_vec<float, float, VEC>(from));
				else
					for (int64_t k = 0; k < rest; k++)
						to[k] = (__nv_bfloat16)from[k];
			});
	r->n = 0;
	r->total = 0;
}

#define TRANSPOSE_TILE 32 /* rows and columns of a block's tile */
#define TRANSPOSE_ROWS 8  /* rows that a block copies per iteration */

/*
 * to [columns, rows] = from [rows, columns], transposed through a tile in shared memory, so that
 * reads and writes of global memory are both coalesced.  The extra column of the tile avoids bank
 * conflicts.
 */
template <typename T>
static __global__ void transpose_kernel(struct replicas replicas, const float *from, int64_t rows,
					int64_t columns, T *to)
{
	replicas.to_own(from, to);
	__shared__ float tile[TRANSPOSE_TILE][TRANSPOSE_TILE + 1];
	const unsigned across = (unsigned)((columns + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE);
	const int64_t row = (int64_t)(blockIdx.x / across) * TRANSPOSE_TILE,
		      column = (int64_t)(blockIdx.x % across) * TRANSPOSE_TILE;
	const int x = (int)threadIdx.x % TRANSPOSE_TILE, y = (int)threadIdx.x / TRANSPOSE_TILE;

	pdl_wait();
	for (int k = y; k < TRANSPOSE_TILE; k += TRANSPOSE_ROWS)
		if (row + k < rows && column + x < columns)
			tile[k][x] = from[(row + k) * columns + column + x];
	__syncthreads();
	for (int k = y; k < TRANSPOSE_TILE; k += TRANSPOSE_ROWS)
		if (column + k < columns && row + x < rows)
			to[(column + k) * rows + row + x] = (T)tile[x][k];
}

template <typename T>
static void transpose(const struct backend *b, const struct params *p, const struct param *q)
{
	const int64_t rows = q->dim[0], columns = q->count / rows;
	const int64_t down = (rows + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE,
		      across = (columns + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
	struct call c = {};

	c.backend = b;
	launch_for(&c, transpose_kernel<T>, dim3((unsigned)(down * across)),
		   TRANSPOSE_TILE * TRANSPOSE_ROWS, 0, (const float *)p->data + q->offset, rows,
		   columns, (T *)q->copy[1].memory);
}

/* Copy 1 [O,I] of a weight [I,O]: gemv.cuh reads it in bfloat16, kernels/linear.cu in float. */
static void transpose_copy(const struct backend *b, const struct params *p, const struct param *q)
{
	if (q->copy[1].bytes == (size_t)q->count * sizeof(float))
		transpose<float>(b, p, q);
	else
		transpose<__nv_bfloat16>(b, p, q);
}

/*
 * Refreshes the copies of the weights that kernels read.  Copy 0 is the weight rounded to bfloat16,
 * for gemm.cuh.  Copy 1 is its transpose.
 */
static void cuda_copy_params(const struct backend *b, const struct params *p)
{
	struct rounding_list r = {};

	for (int i = 0; i < p->n; i++) {
		const struct param *q = &p->list[i];

		if (q->copy[1].memory)
			transpose_copy(b, p, q);
		if (!q->copy[0].memory)
			continue;
		r.list[r.n++] = { r.total, q->count, (const float *)p->data + q->offset,
				  (__nv_bfloat16 *)q->copy[0].memory };
		r.total += (q->count + VEC - 1) / VEC;
		if (r.n == MAX_ROUNDED)
			launch_rounding(b, &r);
	}
	launch_rounding(b, &r);
}

/* ----------------------------------------------------------- scalars of tensors */

template <typename T>
static __global__ void collect_scalars_kernel(struct replicas replicas, const T *const *from, int n,
					      double *to)
{
	const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

	replicas.to_own(from, to);
	pdl_wait();
	if (i < n) {
		const T *at = from[i];

		replicas.to_own(at);
		to[i] = (double)*at;
	}
}

template <typename T>
static void launch_collect(struct cuda_context *g, const void *const *from, int n, double *to)
{
	launch_pdl(g->pdl, collect_scalars_kernel<T>, (unsigned)((n + BLOCK - 1) / BLOCK), BLOCK, 0,
		   stream_of(g), (const T *const *)from, n, to);
	cuda_note(g, cudaPeekAtLastError(), "losses");
}

static void cuda_collect(const struct backend *b, enum dtype type, const void *const *from, int n,
			 double *to)
{
	if (n == 0)
		return;
	if (type == F32)
		launch_collect<float>(context(b), from, n, to);
	else
		launch_collect<double>(context(b), from, n, to);
}

/* --------------------------------------------------------------------- graphs */

static void cuda_capture(const struct backend *b)
{
	cuda_note(context(b),
		  cudaStreamBeginCapture(context(b)->stream, cudaStreamCaptureModeThreadLocal),
		  "capture");
}

static void *cuda_captured(const struct backend *b)
{
	struct cuda_context *g = context(b);
	cudaGraphExec_t executable = NULL;
	cudaGraph_t graph = NULL;

	cuda_note(g, cudaStreamEndCapture(g->stream, &graph), "capture");
	g->pdl = g->pdl_allowed;
	if (!graph)
		return NULL;
	cuda_note(g, cudaGraphInstantiate(&executable, graph, 0), "graph");
	cudaGraphDestroy(graph);
	return executable;
}

static void cuda_replay(const struct backend *b, void *graph)
{
	cuda_note(context(b), cudaGraphLaunch((cudaGraphExec_t)graph, context(b)->stream), "graph");
}

static void cuda_forget(const struct backend *b, void *graph)
{
	cuda_note(context(b), cudaGraphExecDestroy((cudaGraphExec_t)graph), "graph");
}

/* KABLATE_CUDA_GRAPHS=off, for tests and debugging: launch every kernel, capture no graph. */
static bool graphs_enabled(void)
{
	const char *text = getenv("KABLATE_CUDA_GRAPHS");

	return !text || strcmp(text, "off") != 0;
}

/* KABLATE_CUDA_PDL=off, for tests and debugging: no programmatic dependent launch. */
static bool pdl_enabled(void)
{
	const char *text = getenv("KABLATE_CUDA_PDL");

	return !text || strcmp(text, "off") != 0;
}

/* -------------------------------------------------------------------- streams */

/* A program that computes more elements than this runs on one stream: its kernels fill the GPU. */
#define STREAM_MAX_ELEMENTS ((int64_t)64 << 20)

/* GEMMs on different streams must not share a workspace, and cublasSetStream() resets it. */
static void set_stream(struct cuda_context *g, int stream)
{
	*(struct cuda_stream *)g = g->streams[stream];
	cuda_note_blas(g, cublasSetStream(g->blas, g->stream), "cuBLAS");
	cuda_note_blas(g, cublasSetWorkspace(g->blas, g->blas_memory, BLAS_MEMORY), "cuBLAS");
}

static void cuda_use_stream(const struct backend *b, int stream)
{
	struct cuda_context *g = context(b);

	g->pdl = g->pdl_allowed;
	if (g->stream != g->streams[stream].stream)
		set_stream(g, stream);
}

/*
 * Weights of kernels when the engine balances streams, in short kernels.  At the laptop scale on an
 * H200, a cuBLAS GEMM takes 5 to 8 microseconds, attention 7 to 10, and most other kernels 2.
 */
const int cuda_gemm_length = 3, cuda_attention_length = 4;

static int64_t cuda_issued(const struct backend *b)
{
	return context(b)->issued;
}

static bool create_events(struct cuda_context *g, int n)
{
	void *list =
		n > g->n_events ? realloc(g->events, (size_t)n * sizeof(*g->events)) : g->events;

	if (!list) {
		cuda_note(g, cudaErrorMemoryAllocation, "events of streams");
		return false;
	}
	g->events = (cudaEvent_t *)list;
	while (g->n_events < n && !g->failed) {
		cuda_note(g,
			  cudaEventCreateWithFlags(&g->events[g->n_events], cudaEventDisableTiming),
			  "events of streams");
		g->n_events += !g->failed;
	}
	return !g->failed;
}

static void cuda_record_event(const struct backend *b, int number)
{
	struct cuda_context *g = context(b);

	if (create_events(g, number + 1))
		cuda_note(g, cudaEventRecord(g->events[number], g->stream), "record_event");
}

/*
 * A kernel that waits for another stream depends on several kernels.  PDL covers only the preceding
 * kernel of its own stream, so it is off until the next instruction.
 */
static void cuda_wait_event(const struct backend *b, int number)
{
	struct cuda_context *g = context(b);

	g->pdl = false;
	if (!g->failed)
		cuda_note(g, cudaStreamWaitEvent(g->stream, g->events[number], 0), "wait");
}

/* KABLATE_CUDA_STREAMS=N or off, for tests and debugging. */
static int stream_count(void)
{
	const char *text = getenv("KABLATE_CUDA_STREAMS");
	const int streams = text ? atoi(text) : CUDA_STREAMS;

	return streams < 1 ? 1 : streams > CUDA_STREAMS ? CUDA_STREAMS : streams;
}

/*
 * Replicas fill the GPU together: nothing is left for other streams, and an op whose gradients are
 * computed by two instructions would read its tensors twice.
 */
static void set_up_streams(struct backend *b)
{
	b->streams = stream_count();
	b->stream_max_elements = REPLICA_FORM ? 0 : STREAM_MAX_ELEMENTS;
	b->issued = cuda_issued;
	b->use_stream = cuda_use_stream;
	b->record_event = cuda_record_event;
	b->wait_event = cuda_wait_event;
}

/* Memory of the context itself: not counted as allocated. */
static void *own_memory(struct cuda_context *g, size_t bytes, const char *what)
{
	void *memory = NULL;

	if (REPLICA_FORM && !g->failed)
		memory = slabs_alloc(g, bytes);
	else if (!REPLICA_FORM)
		cuda_note(g, cudaMalloc(&memory, bytes), what);
	if (REPLICA_FORM && !memory)
		cuda_note(g, cudaErrorMemoryAllocation, what);
	return memory;
}

/* Slabs are freed as a whole. */
static void free_own(void *memory)
{
	if (!REPLICA_FORM)
		cudaFree(memory);
}

static void close_stream(struct cuda_stream *stream)
{
	cudaFree(stream->blas_memory);
	free_own(stream->dropout_key);
	free_own(stream->arrivals);
	if (stream->stream)
		cudaStreamDestroy(stream->stream);
}

static void open_stream(struct cuda_context *g, struct cuda_stream *stream)
{
	const size_t counters = ARRIVAL_COUNTERS * sizeof(*stream->arrivals);

	cuda_note(g, cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking), "stream");
	cuda_note(g, cudaMalloc(&stream->blas_memory, BLAS_MEMORY), "memory of products");
	stream->dropout_key =
		(uint32_t *)own_memory(g, 2 * sizeof(*stream->dropout_key), "memory of a run");
	stream->arrivals = (unsigned *)own_memory(g, counters, "memory of counters");
	if (!g->failed) {
		g->stream = stream->stream;
		clear(g, stream->arrivals, counters, "memory of counters");
	}
}

/* ------------------------------------------------------------ opening, closing */

/*
 * GPU memory of a process beside its allocations, in MiB, measured on an H200 with CUDA 13.0: the
 * CUDA context with cuBLAS and one workspace; each further stream; and later the code of kernels
 * and the graphs.
 */
#define OPENED_MEBIBYTES 624
#define STREAM_MEBIBYTES 34
#define LATER_MEBIBYTES 8
#define MEBIBYTE 1048576.0

static void cuda_memory(const struct backend *b, struct backend_memory *m)
{
	struct cuda_context *g = context(b);
	struct cudaDeviceProp properties;
	size_t free_now = 0, total = 0;

	*m = {};
	cuda_note(g, cudaGetDeviceProperties(&properties, g->device), "properties");
	cuda_note(g, cudaMemGetInfo(&free_now, &total), "free memory");
	for (int i = 0; i < (int)sizeof(properties.uuid.bytes); i++)
		snprintf(m->device + 2 * i, sizeof(m->device) - 2 * (size_t)i, "%02x",
			 (unsigned char)properties.uuid.bytes[i]);
	m->total = (double)total;
	m->free = (double)free_now;
	m->taken = (double)g->allocated;
	m->most = (double)g->peak;
	m->opened = (OPENED_MEBIBYTES + STREAM_MEBIBYTES * (b->streams - 1)) * MEBIBYTE;
	m->later = LATER_MEBIBYTES * MEBIBYTE;
	m->unit = 2 * MEBIBYTE;
}

/* "NVIDIA H200, 132 SMs, driver for CUDA 13.0, CUDA 13.0, cuBLAS 130002" */
static void cuda_describe(const struct backend *b, char *text, size_t size)
{
	int driver = 0, runtime = 0, blas = 0;
	struct cudaDeviceProp properties;

	cuda_note(context(b), cudaGetDeviceProperties(&properties, context(b)->device),
		  "properties");
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	cublasGetVersion(context(b)->blas, &blas);
	snprintf(text, size, "%s, %d SMs, driver for CUDA %d.%d, CUDA %d.%d, cuBLAS %d",
		 properties.name, context(b)->sm_count, driver / 1000, driver % 1000 / 10,
		 runtime / 1000, runtime % 1000 / 10, blas);
}

static void cuda_close(struct backend *b)
{
	struct cuda_context *g = context(b);

	if (!g)
		return;
	cuda_forget_plans(g);
	for (int i = 0; i < g->n_events; i++)
		cudaEventDestroy(g->events[i]);
	free(g->events);
	free_own(g->scalar);
	free_own(g->run);
	slabs_free(g);
	free(g->found);
	cudaFreeHost(g->staging.memory);
	for (int i = 0; i < 2; i++)
		if (g->staging.read[i])
			cudaEventDestroy(g->staging.read[i]);
	if (g->blas)
		cublasDestroy(g->blas);
	for (int i = 0; i < CUDA_STREAMS; i++)
		close_stream(&g->streams[i]);
	free(g->blocks);
	free(g);
	b->context = NULL;
}

static void query_device(struct cuda_context *g)
{
	struct cudaDeviceProp properties;

	cuda_note(g, cudaGetDeviceProperties(&properties, g->device), "properties");
	g->pdl = g->pdl_allowed = pdl_enabled() && ptx_version(min_of_parts_kernel) >= 90;
	g->has_wgmma = ptx_version(min_of_parts_kernel) == 90;
	g->sm_count = properties.multiProcessorCount;
	g->shared_bytes = (int64_t)properties.sharedMemPerBlockOptin;
}

static enum status open_replicas(struct cuda_context *g, struct error *err)
{
	const double each = (double)replica_stride(g->replicas);
	const int count = replica_count(g->replicas);
	size_t free_now = 0, total = 0;

	if (slabs_grow(g))
		return OK;
	cuda_note(g, cudaMemGetInfo(&free_now, &total), "free memory");
	return fail(err,
		    "%d replicas of %.0f bytes need %.0f bytes of the GPU, of which %.0f are free",
		    count, each, each * count, (double)free_now);
}

static enum status open_device(struct cuda_context *g, int streams, struct error *err)
{
	int count = 0;
	const cudaError_t found = cudaGetDeviceCount(&count);

	if (found != cudaSuccess || count == 0)
		return fail(err, "no GPU: %s",
			    found == cudaSuccess ? "none is there" : cudaGetErrorString(found));
	if (g->device >= count)
		return fail(err, "there is no GPU number %d: this machine has %d", g->device,
			    count);
	cuda_note(g, cudaSetDevice(g->device), "choosing the GPU");
	g->found = (double *)calloc((size_t)replica_count(g->replicas), sizeof(*g->found));
	if (!g->found)
		return fail_memory(err, "GPU", sizeof(*g->found));
	if (REPLICA_FORM && !g->failed && open_replicas(g, err) != OK)
		return FAIL;
	for (int i = 0; i < streams && !g->failed; i++)
		open_stream(g, &g->streams[i]);
	if (!g->failed)
		cuda_note_blas(g, cublasCreate(&g->blas), "cuBLAS");
	if (!g->failed)
		set_stream(g, 0);
	g->scalar = (double *)own_memory(g, (1 + UPDATE_PARTS) * sizeof(double), "memory of sums");
	g->run = (struct run *)own_memory(g, sizeof(*g->run), "memory of a run");
	cuda_note(g, cudaMallocHost(&g->staging.memory, 2 * STAGING_HALF), "memory of uploads");
	for (int i = 0; i < 2; i++)
		cuda_note(g, cudaEventCreateWithFlags(&g->staging.read[i], cudaEventDisableTiming),
			  "memory of uploads");
	if (!g->failed)
		query_device(g);
	if (!g->failed)
		return OK;
	*err = g->err;
	return FAIL;
}

/* `replicas` and their bytes: core/backend/open.h.  The ordinary library knows none. */
extern "C" enum status cuda_backend_open(struct backend *b, enum precision precision, int device,
					 int replicas, size_t replica_bytes, struct error *err)
{
	struct cuda_context *g = (struct cuda_context *)calloc(1, sizeof(*g));

	*b = {};
	if (!g)
		return fail_memory(err, "GPU", sizeof(*g));
	g->device = device;
	g->replicas = replicas_of(replicas, (replica_bytes + 255) / 256 * 256);
	g->chosen = REPLICAS_ALL;
	b->name = "cuda";
	b->precision = precision;
	b->threads = 1;
	b->is_async = true;
	b->context = g;
	b->kernels = precision_rounds(precision) ? cuda_kernels_bf16 : cuda_kernels;
	b->optim = cuda_optim;
	b->alloc = cuda_alloc;
	b->release = cuda_release;
	b->upload = cuda_upload;
	b->download = cuda_download;
	b->zero = cuda_zero;
	if (REPLICA_FORM) {
		b->replicas = replicas;
		b->choose_replica = cuda_choose_replica;
	}
	b->find_nonfinite = cuda_find_nonfinite;
	b->begin_run = cuda_begin_run;
	b->copy_params = cuda_copy_params;
	if (precision_rounds(precision)) {
		b->fusable = cuda_fusable;
		b->run_fused = cuda_run_fused;
	}
	b->collect = cuda_collect;
	if (graphs_enabled()) {
		b->capture = cuda_capture;
		b->captured = cuda_captured;
		b->replay = cuda_replay;
		b->forget = cuda_forget;
	}
	set_up_streams(b);
	b->memory = cuda_memory;
	b->host_alloc = cuda_host_alloc;
	b->host_release = cuda_host_release;
	b->describe = cuda_describe;
	b->check = cuda_check;
	b->wait = cuda_wait;
	b->close = cuda_close;
	if (open_device(g, b->streams, err) == OK) {
		b->units = g->sm_count;
		return OK;
	}
	cuda_close(b);
	return FAIL;
}
