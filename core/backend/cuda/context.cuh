/*
 * context - an opened GPU: its stream, cuBLAS, and the first thing that went wrong.
 *
 * A launch does not wait for its kernel, so it cannot report how the kernel ends.  The
 * context keeps the first failure; cuda_wait() and every later call of the backend
 * return it.
 */
#ifndef CUDA_CONTEXT_CUH
#define CUDA_CONTEXT_CUH

struct cuda_context {
	int device;
	cudaStream_t stream;
	cublasHandle_t blas;
	void *blas_memory; /* cuBLAS takes its workspace here: products never depend on free memory */
	double *scalar;	   /* device: a sum that the host asked for, and its SUM_WORK */
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

/* Keep the first failure. */
void cuda_note(struct cuda_context *g, cudaError_t error, const char *where);
void cuda_note_blas(struct cuda_context *g, cublasStatus_t status, const char *where);

static inline void note_launch(const struct call *c)
{
	const cudaError_t error = cudaPeekAtLastError();

	if (error != cudaSuccess)
		cuda_note(context_of(c), error, c->node ? c->node->name : "update");
}

#endif
