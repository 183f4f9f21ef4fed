/*
 * context - an opened GPU: its streams, cuBLAS, and the first thing that went wrong.
 *
 * A launch does not wait for its kernel, so it cannot report how the kernel ends.  The
 * context keeps the first failure; cuda_wait() and every later call of the backend
 * return it.
 */
#ifndef CUDA_DEVICE_CONTEXT_CUH
#define CUDA_DEVICE_CONTEXT_CUH

/*
 * Pinned memory of the host, through which small uploads pass without a wait.  It is used half by
 * half; the event of a half says when the device has read it.
 */
#define STAGING_HALF ((size_t)2 << 20)

struct staging {
	char *memory;
	size_t used; /* of this half */
	int half;
	cudaEvent_t read[2];
};

/* What alloc() gave. */
struct block {
	void *at;
	size_t bytes;
};

/* cuBLAS wants 32 MiB on Hopper; a fixed size keeps its choices the same on all GPUs. */
#define BLAS_MEMORY ((size_t)32 << 20)

/* Counters of blocks that have arrived. */
#define ARRIVAL_COUNTERS 16384

/* Partial sums of an update. */
#define UPDATE_PARTS 4096

/* What kernels of different lanes, which run at the same time, must not share. */
struct cuda_stream {
	cudaStream_t stream;
	void *blas_memory; /* cuBLAS takes its workspace here: products never depend on free memory
			    */
	uint32_t *dropout_key; /* device: of the node that follows */
	unsigned *arrivals;    /* device: ARRIVAL_COUNTERS counters, 0 between kernels */
};

/* More lanes than a small model has work for gain nothing, and each takes BLAS_MEMORY. */
#define CUDA_STREAMS 8

struct cuda_context : cuda_stream { /* the lane that is asked for work now */
	int device;
	cublasHandle_t blas; /* of this lane's stream and workspace */
	struct cuda_stream streams[CUDA_STREAMS];
	cudaEvent_t *events; /* of the engine's numbers; NULL: not used yet */
	int n_events;
	struct plan *plans; /* of products by cuBLASLt, one for each shape: epilogue.cu */
	int n_plans;
	double *scalar;	  /* device: a number that the host asked for, and UPDATE_PARTS for sums */
	struct run *run;  /* device: of the kernels that follow */
	bool pdl;	  /* a kernel may come to the GPU before the last one ends (launch.cuh) */
	bool pdl_allowed; /* the same, where no lane has waited for another */
	bool has_wgmma;	  /* the code has products of four warps (wgmma.cuh) */
	int multiprocessors;  /* of the GPU, each with memory that a block of threads shares: */
	int64_t shared_bytes; /* what one block may take of it */
	struct staging staging;
	struct block *blocks;
	int n_blocks, block_capacity;
	size_t taken, most; /* bytes of the blocks */
	int64_t issued;	    /* work, in short kernels */
	bool failed;
	struct error err;
};

static inline struct cuda_context *context_of(const struct call *c)
{
	return (struct cuda_context *)c->backend->context;
}

static inline cudaStream_t stream_of(const struct call *c)
{
	return context_of(c)->stream;
}

/*
 * The values of the run, to be read on the device: a captured launch finds those of its own run
 * there.  On the host c->run has the same, but only for what is the same in all runs of a captured
 * program: run_adds(), and past where `follows_past` of the kernels says so.
 */
static inline const struct run *run_of(const struct call *c)
{
	return context_of(c)->run;
}

/* Keep the first failure. */
void cuda_note(struct cuda_context *g, cudaError_t error, const char *where);
void cuda_note_blas(struct cuda_context *g, cublasStatus_t status, const char *where);

/* How long kernels take that are not short where lanes are used, in short ones. */
extern const int cuda_gemm_length, cuda_attention_length;

static inline void note_launch(const struct call *c, int length = 1)
{
	const cudaError_t error = cudaPeekAtLastError();

	context_of(c)->issued += length;
	if (error != cudaSuccess)
		cuda_note(context_of(c), error, c->node ? c->node->name : "update");
}

/* Kernels of more than 48 KiB of shared memory have to ask for it before they are launched. */
template <typename Kernel>
static void set_max_dynamic_smem(const struct call *c, Kernel *kernel, int bytes)
{
	cuda_note(context_of(c),
		  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
		  "shared memory");
}

#endif
