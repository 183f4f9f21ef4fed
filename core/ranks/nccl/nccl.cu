/*
 * NCCL as a transport: messages from GPU to GPU.  A library of its own; ranks.c loads it.
 *
 * Messages have a stream of their own, beside the backend's.  A message waits for the kernels that
 * were launched before it was posted; kernels launched after ranks_wait() wait for the messages.
 * The host waits for neither.  The ranks find each other through the transport of the host.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include "core/engine/backend.h"
#include "core/ranks/ranks.h"
}

#include "core/backend/cuda/device/context.cuh"

struct nccl {
	ncclComm_t group;
	cudaStream_t computing, transfers;
	cudaEvent_t computed, transferred;
	bool in_group; /* messages are collected until ranks_start() */
};

static struct nccl *nccl_of(struct ranks *r)
{
	return (struct nccl *)r->context;
}

static enum status check(ncclResult_t result, const char *what, struct error *err)
{
	if (result == ncclSuccess)
		return OK;
	return fail(err, "NCCL: %s: %s", what, ncclGetErrorString(result));
}

static enum status check_cuda(cudaError_t error, const char *what, struct error *err)
{
	if (error == cudaSuccess)
		return OK;
	return fail(err, "NCCL: %s: %s", what, cudaGetErrorString(error));
}

/* The first message of a group: it waits for the kernels that were issued before. */
static enum status begin_group(struct nccl *n, struct error *err)
{
	if (n->in_group)
		return OK;
	if (check_cuda(cudaEventRecord(n->computed, n->computing), "order", err) != OK ||
	    check_cuda(cudaStreamWaitEvent(n->transfers, n->computed, 0), "order", err) != OK)
		return FAIL;
	n->in_group = true;
	return check(ncclGroupStart(), "start", err);
}

static enum status nccl_send(struct ranks *r, int to, const void *memory, size_t bytes,
			     struct error *err)
{
	struct nccl *n = nccl_of(r);

	if (begin_group(n, err) != OK)
		return FAIL;
	return check(ncclSend(memory, bytes, ncclChar, to, n->group, n->transfers), "send", err);
}

static enum status nccl_receive(struct ranks *r, int from, void *memory, size_t bytes,
				struct error *err)
{
	struct nccl *n = nccl_of(r);

	if (begin_group(n, err) != OK)
		return FAIL;
	return check(ncclRecv(memory, bytes, ncclChar, from, n->group, n->transfers), "receive",
		     err);
}

static enum status nccl_start(struct ranks *r, struct error *err)
{
	struct nccl *n = nccl_of(r);

	if (!n->in_group)
		return OK;
	n->in_group = false;
	return check(ncclGroupEnd(), "start", err);
}

/* Messages need no help from the host; this only looks whether something went wrong. */
static enum status nccl_progress(struct ranks *r, struct error *err)
{
	ncclResult_t state;

	if (check(ncclCommGetAsyncError(nccl_of(r)->group, &state), "look", err) != OK)
		return FAIL;
	return state == ncclInProgress ? OK : check(state, "transfer", err);
}

static enum status nccl_wait(struct ranks *r, struct error *err)
{
	struct nccl *n = nccl_of(r);

	if (check_cuda(cudaEventRecord(n->transferred, n->transfers), "order", err) != OK)
		return FAIL;
	return check_cuda(cudaStreamWaitEvent(n->computing, n->transferred, 0), "order", err);
}

static void nccl_abort(struct ranks *r, int status)
{
	ncclCommAbort(nccl_of(r)->group);
	r->host->type->abort(r->host, status);
}

static void nccl_close(struct ranks *r)
{
	struct nccl *n = nccl_of(r);

	if (n->transfers)
		cudaStreamSynchronize(n->transfers);
	if (n->group)
		ncclCommDestroy(n->group);
	if (n->computed)
		cudaEventDestroy(n->computed);
	if (n->transferred)
		cudaEventDestroy(n->transferred);
	if (n->transfers)
		cudaStreamDestroy(n->transfers);
	free(n);
}

static const struct ranks_type *nccl_type(void)
{
	static struct ranks_type type;

	type.name = "NCCL";
	type.device_memory = true;
	type.send = nccl_send;
	type.receive = nccl_receive;
	type.start = nccl_start;
	type.progress = nccl_progress;
	type.wait = nccl_wait;
	type.abort = nccl_abort;
	type.close = nccl_close;
	return &type;
}

static enum status open_streams(struct nccl *n, const struct cuda_context *gpu, struct error *err)
{
	n->computing = gpu->stream;
	if (check_cuda(cudaSetDevice(gpu->device), "GPU", err) != OK ||
	    check_cuda(cudaStreamCreateWithFlags(&n->transfers, cudaStreamNonBlocking), "stream",
		       err) != OK ||
	    check_cuda(cudaEventCreateWithFlags(&n->computed, cudaEventDisableTiming), "event",
		       err) != OK)
		return FAIL;
	return check_cuda(cudaEventCreateWithFlags(&n->transferred, cudaEventDisableTiming),
			  "event", err);
}

struct place {
	char bus[32], host[96];
};

/* NCCL cannot use a GPU for two ranks. */
static enum status find_place(struct place *mine, const struct cuda_context *gpu, struct error *err)
{
	*mine = {};
	gethostname(mine->host, sizeof(mine->host) - 1);
	return check_cuda(cudaDeviceGetPCIBusId(mine->bus, sizeof(mine->bus), gpu->device), "GPU",
			  err);
}

static enum status check_places(struct ranks *r, const struct cuda_context *gpu, struct error *err)
{
	struct place mine, *all = (struct place *)calloc((size_t)r->size, sizeof(*all));
	enum status status = FAIL;

	if (!all)
		return fail_memory(err, "ranks", (size_t)r->size * sizeof(*all));
	if (find_place(&mine, gpu, err) == OK &&
	    ranks_gather(r->host, &mine, all, sizeof(mine), err) == OK)
		status = OK;
	for (int i = 0; status == OK && i < r->size; i++)
		for (int j = 0; status == OK && j < i; j++)
			if (memcmp(&all[i], &all[j], sizeof(mine)) == 0)
				status = fail(err, "ranks %d and %d share a GPU, which NCCL cannot",
					      j, i);
	free(all);
	return status;
}

static enum status open_group(struct ranks *r, struct nccl *n, struct error *err)
{
	ncclUniqueId id = {};

	if (r->rank == 0 && check(ncclGetUniqueId(&id), "name", err) != OK)
		return FAIL;
	if (ranks_broadcast(r->host, 0, &id, sizeof(id), err) != OK)
		return FAIL;
	return check(ncclCommInitRank(&n->group, r->size, id, r->rank), "start", err);
}

/* FAIL on all ranks where one of them fails. */
extern "C" enum status ranks_open_nccl(struct ranks *r, void *device, struct error *err)
{
	const struct cuda_context *gpu = (const struct cuda_context *)device;
	struct nccl *n = (struct nccl *)calloc(1, sizeof(*n));

	if (!n)
		return fail_memory(err, "NCCL", sizeof(*n));
	r->context = n;
	r->type = nccl_type();
	r->loopback = r->size == 1; /* one rank tries it alone */
	if (ranks_agree(r->host, check_places(r, gpu, err), err) == OK &&
	    ranks_agree(r->host, open_streams(n, gpu, err), err) == OK &&
	    ranks_agree(r->host, open_group(r, n, err), err) == OK)
		return OK;
	nccl_close(r);
	return FAIL;
}
