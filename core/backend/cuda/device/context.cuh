/*
 * The state of an open GPU: its streams, its cuBLAS handle, its allocations and its first error.
 *
 * A launch returns before its kernel runs, so it cannot report how the kernel ends.  The context
 * keeps the first error; cuda_wait() and every later call of the backend return it.
 */
#ifndef CUDA_DEVICE_CONTEXT_CUH
#define CUDA_DEVICE_CONTEXT_CUH

#include "core/backend/cuda/device/launch.cuh"

/*
 * Pinned host memory through which small uploads pass without a wait.  It has two halves.  The
 * event of a half tells when the device has read all of it.
 */
#define STAGING_HALF ((size_t)(REPLICA_FORM ? 32 : 2) << 20)

struct staging {
	char *memory;
	size_t used; /* bytes of the current half */
	int half;
	cudaEvent_t read[2];
};

/* One allocation of cuda_alloc(). */
struct block {
	void *at;
	size_t bytes;
};

/* The memory of replicas (slabs.cuh). */
struct slabs {
	char **list; /* where they begin: real addresses of replica 0 */
	int n;
};

/*
 * cuBLAS recommends 32 MiB on Hopper.  A fixed size keeps its choice of algorithms the same on all
 * GPUs.
 */
#define BLAS_MEMORY ((size_t)32 << 20)

/* Counters of thread blocks that have finished, for is_last_block(). */
#define ARRIVAL_COUNTERS 16384

/* Partial sums of an optimizer update. */
#define UPDATE_PARTS 4096

/* What kernels on different streams, which run concurrently, must not share. */
struct cuda_stream {
	cudaStream_t stream;
	void *blas_memory;     /* the workspace of cuBLAS, BLAS_MEMORY bytes */
	uint32_t *dropout_key; /* device: key of the next dropout node */
	unsigned *arrivals;    /* device: ARRIVAL_COUNTERS counters, 0 between kernels */
};

/* More streams gain nothing for a small model, and each takes BLAS_MEMORY. */
#define CUDA_STREAMS 8

struct cuda_context : cuda_stream { /* the base is the current stream */
	int device;
	struct replicas replicas;
	struct slabs slabs;  /* the memory of replicas */
	int chosen;	     /* the replica that copies act on, or one of REPLICAS_* */
	double *found;	     /* on the host: results of find_nonfinite, by replica */
	cublasHandle_t blas; /* set to the current stream and its workspace */
	struct cuda_stream streams[CUDA_STREAMS];
	cudaEvent_t *events; /* indexed by the engine's event numbers */
	int n_events;
	struct plan *plans; /* cuBLASLt algorithms, one for each shape: epilogue.cu */
	int n_plans;
	double *scalar;	      /* device: a result for the host, then UPDATE_PARTS partial sums */
	struct run *run;      /* device: the values of the current run */
	bool pdl;	      /* launch the next kernel with PDL (launch.cuh) */
	bool pdl_allowed;     /* the GPU supports PDL and it is not switched off */
	bool has_wgmma;	      /* the code was compiled for sm_90a (wgmma.cuh) */
	int sm_count;	      /* SMs of the GPU */
	int64_t shared_bytes; /* shared memory that one thread block may use */
	struct staging staging;
	struct block *blocks; /* of replicas: in the order of their addresses */
	int n_blocks, block_capacity;
	size_t allocated, peak; /* bytes */
	int64_t issued;		/* launches so far, weighted by their length */
	bool failed;
	struct error err;
};

static inline struct cuda_context *context_of(const struct call *c)
{
	return (struct cuda_context *)c->backend->context;
}

/*
 * Blocks of a launch whose work can be split at will, among them sums: at most `per_sm` for each of
 * the GPU's multiprocessors, which then are all busy.  A power of two, since most sizes are a
 * multiple of one.
 */
static inline int64_t blocks_to_fill(int sms, int per_sm)
{
	int64_t blocks = 1;

	while (2 * blocks <= (int64_t)sms * per_sm)
		blocks *= 2;
	return blocks;
}

static inline struct launch_stream stream_of(const struct cuda_context *g)
{
	return { g->stream, g->replicas };
}

static inline struct launch_stream stream_of(const struct call *c)
{
	return stream_of(context_of(c));
}

/*
 * The values of the run, in device memory.  Kernels read them there, because a captured launch is
 * replayed in later runs.  c->run on the host may be used only for what is the same in all runs of
 * a captured program: run_adds(), and `past` where `follows_past` of the kernels says so.
 */
static inline const struct run *run_of(const struct call *c)
{
	return context_of(c)->run;
}

/* Keep the first error. */
void cuda_note(struct cuda_context *g, cudaError_t error, const char *where);
void cuda_note_blas(struct cuda_context *g, cublasStatus_t status, const char *where);

/* Weights of long kernels for note_launch(), in short kernels. */
extern const int cuda_gemm_length, cuda_attention_length;

static inline void note_launch(const struct call *c, int length = 1)
{
	const cudaError_t error = cudaPeekAtLastError();

	context_of(c)->issued += length;
	if (error != cudaSuccess)
		cuda_note(context_of(c), error, c->node ? c->node->name : "update");
}

/* Launches a kernel that calls pdl_wait(). */
template <typename... Parameters, typename... Arguments>
static void launch_for(const struct call *c, void (*kernel)(struct replicas, Parameters...),
		       dim3 blocks, int threads, int bytes, const Arguments &...arguments)
{
	launch_pdl(context_of(c)->pdl, kernel, blocks, threads, bytes, stream_of(c), arguments...);
	note_launch(c);
}

/* A kernel that uses more than 48 KiB of shared memory needs this before its launch. */
template <typename Kernel>
static void set_max_dynamic_smem(const struct call *c, Kernel *kernel, int bytes)
{
	cuda_note(context_of(c),
		  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
		  "shared memory");
}

#endif
