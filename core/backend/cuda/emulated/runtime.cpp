#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <map>
#include <set>
#include <vector>

#define DEVICE_BYTES ((size_t)16 << 30)
#define VERSION 13000
#define ALIGNMENT 256 /* of what cudaMalloc() gives */
/* Of the smallest GPU that kernels are made for (compute capability 8.6). */
#define SHARED_BYTES (99 << 10)
#define SHARED_BYTES_UNASKED (48 << 10)
#define MOST_THREADS 1024
#define MOST_BLOCKS_OF_Y_Z 65535
#define MOST_WAITING 4096

struct emulated_stream {
	std::deque<std::function<void()>> waiting;
	uint64_t asked, done;
	bool captures, spoilt;
	std::vector<std::function<void()>> captured;
};

struct emulated_event {
	struct emulated_stream *stream;
	uint64_t number; /* of work that was asked for before it */
};

struct emulated_graph {
	std::vector<std::function<void()>> work;
};

static struct {
	std::map<char *, size_t> blocks; /* what cudaMalloc() gave */
	size_t taken;
	const void *scratch; /* a block in which no result is left */
	std::set<struct emulated_stream *> streams;
	std::map<const void *, int> shared; /* bytes that a kernel may ask for */
	cudaError_t error;		    /* the last one */
	std::string failure;		    /* of a kernel; the device does nothing after it */
} device;

static cudaError_t note(cudaError_t error)
{
	if (error != cudaSuccess)
		device.error = error;
	return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaSuccess: return "no error";
	case cudaErrorInvalidValue: return "invalid argument";
	case cudaErrorMemoryAllocation: return "out of memory";
	case cudaErrorInvalidConfiguration: return "invalid configuration";
	case cudaErrorLaunchFailure: return device.failure.c_str();
	case cudaErrorStreamCaptureUnsupported: return "not permitted when stream is capturing";
	case cudaErrorStreamCaptureInvalidated: return "failed earlier while stream was capturing";
	}
	return "unknown error";
}

/* A kernel that failed is never forgotten. */
cudaError_t cudaPeekAtLastError(void)
{
	return device.failure.empty() ? device.error : cudaErrorLaunchFailure;
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t error = cudaPeekAtLastError();

	device.error = cudaSuccess;
	return error;
}

/* ---------------------------------------------------------------------- device */

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 1;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int number)
{
	return note(number == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int)
{
	*properties = {};
	snprintf(properties->name, sizeof(properties->name), "emulated on the CPU");
	memcpy(properties->uuid.bytes, "emulated", 8);
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = VERSION;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = VERSION;
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_now, size_t *total)
{
	*free_now = DEVICE_BYTES - device.taken;
	*total = DEVICE_BYTES;
	return cudaSuccess;
}

/* --------------------------------------------------------------------- streams */

static void do_next(struct emulated_stream *s)
{
	const std::function<void()> work = std::move(s->waiting.front());

	s->waiting.pop_front();
	if (device.failure.empty())
		work();
	s->done++;
}

static void do_until(struct emulated_stream *s, uint64_t number)
{
	while (s->done < number)
		do_next(s);
}

void emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
	if (stream->captures) {
		stream->captured.push_back(std::move(work));
		return;
	}
	stream->asked++;
	stream->waiting.push_back(std::move(work));
	if (stream->waiting.size() > MOST_WAITING)
		do_next(stream);
}

/* What waits for the device, or changes what it has, must not happen while work is captured. */
static bool is_forbidden(void)
{
	bool forbidden = false;

	for (struct emulated_stream *s : device.streams)
		if (s->captures)
			forbidden = s->spoilt = true;
	return forbidden;
}

static cudaError_t wait_for_all(void)
{
	if (is_forbidden())
		return note(cudaErrorStreamCaptureUnsupported);
	for (struct emulated_stream *s : device.streams)
		do_until(s, s->asked);
	return device.failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	*stream = new struct emulated_stream();
	device.streams.insert(*stream);
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	const cudaError_t error = wait_for_all();

	device.streams.erase(stream);
	delete stream;
	return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	if (is_forbidden())
		return note(cudaErrorStreamCaptureUnsupported);
	do_until(stream, stream->asked);
	return device.failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
	*event = new struct emulated_event();
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	if (is_forbidden())
		return note(cudaErrorStreamCaptureUnsupported);
	*event = { stream, stream->asked };
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (is_forbidden())
		return note(cudaErrorStreamCaptureUnsupported);
	if (event->stream)
		do_until(event->stream, event->number);
	return device.failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

/* ---------------------------------------------------------------------- memory */

cudaError_t emulated_malloc(void **memory, size_t bytes)
{
	*memory = NULL;
	if (is_forbidden())
		return note(cudaErrorStreamCaptureUnsupported);
	if (bytes > DEVICE_BYTES - device.taken)
		return note(cudaErrorMemoryAllocation);
	*memory = emulated::exact_memory(ALIGNMENT, bytes);
	if (!*memory)
		return note(cudaErrorMemoryAllocation);
	memset(*memory, EMULATED_UNSET, bytes);
	device.blocks[(char *)*memory] = bytes;
	device.taken += bytes;
	return cudaSuccess;
}

/* Waits, as CUDA does. */
cudaError_t cudaFree(void *memory)
{
	const cudaError_t error = wait_for_all();
	const auto block = device.blocks.find((char *)memory);

	if (!memory)
		return error;
	if (block == device.blocks.end())
		return note(cudaErrorInvalidValue);
	device.taken -= block->second;
	device.blocks.erase(block);
	free(memory);
	return error;
}

cudaError_t emulated_malloc_host(void **memory, size_t bytes)
{
	*memory = malloc(bytes);
	if (!*memory)
		return note(cudaErrorMemoryAllocation);
	memset(*memory, EMULATED_UNSET, bytes);
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
	const cudaError_t error = wait_for_all();

	free(memory);
	return error;
}

/* Is [at, at + bytes) in one block? */
static bool is_on_device(const void *at, size_t bytes)
{
	auto block = device.blocks.upper_bound((char *)at);

	if (block == device.blocks.begin())
		return false;
	block--;
	return (const char *)at + bytes <= block->first + block->second;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	if (!is_on_device(kind == cudaMemcpyHostToDevice ? to : from, bytes))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] { memcpy(to, from, bytes); });
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	if (!is_on_device(to, bytes))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] { memset(to, value, bytes); });
	return cudaSuccess;
}

/* ---------------------------------------------------------------------- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
	if (stream->captures)
		return note(cudaErrorInvalidValue);
	stream->captures = true;
	stream->spoilt = false;
	stream->captured.clear();
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	*graph = NULL;
	if (!stream->captures)
		return note(cudaErrorInvalidValue);
	stream->captures = false;
	if (stream->spoilt)
		return note(cudaErrorStreamCaptureInvalidated);
	*graph = new struct emulated_graph();
	(*graph)->work.swap(stream->captured);
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *kept, cudaGraph_t graph, unsigned)
{
	*kept = new struct emulated_graph(*graph);
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t kept, cudaStream_t stream)
{
	for (const std::function<void()> &work : kept->work)
		emulated_enqueue(stream, work);
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t kept)
{
	delete kept;
	return cudaSuccess;
}

/* -------------------------------------------------------------------- launches */

cudaError_t emulated_set_shared_memory(const void *kernel, int bytes)
{
	if (bytes > SHARED_BYTES)
		return note(cudaErrorInvalidValue);
	device.shared[kernel] = bytes;
	return cudaSuccess;
}

static bool is_possible(const void *kernel, const struct emulated::launch &l)
{
	const auto asked = device.shared.find(kernel);
	const int most = asked == device.shared.end() || asked->second < SHARED_BYTES_UNASKED
				 ? SHARED_BYTES_UNASKED
				 : asked->second;

	return l.threads.count() > 0 && l.threads.count() <= MOST_THREADS && l.blocks.count() > 0 &&
	       l.blocks.x <= INT32_MAX && l.blocks.y <= MOST_BLOCKS_OF_Y_Z &&
	       l.blocks.z <= MOST_BLOCKS_OF_Y_Z && l.bytes >= 0 && l.bytes <= most;
}

void emulated_set_scratch(const void *block)
{
	device.scratch = block;
}

/* The memory of the device, to be compared or brought back. */
typedef std::map<char *, std::vector<char>> snapshot;

static snapshot take_snapshot(void)
{
	snapshot all;

	for (const auto &block : device.blocks)
		if (block.first != device.scratch)
			all[block.first].assign(block.first, block.first + block.second);
	return all;
}

static void bring_back(const snapshot &all)
{
	for (const auto &block : all)
		memcpy(block.first, block.second.data(), block.second.size());
}

/* A kernel whose threads race gives other bits when they run in another order. */
static std::string run_in_both_orders(const struct emulated::launch &launch)
{
	const snapshot before = take_snapshot();
	std::string failure = run(launch, emulated::FORWARDS);
	snapshot after;

	if (!failure.empty())
		return failure;
	after = take_snapshot();
	bring_back(before);
	failure = run(launch, emulated::BACKWARDS);
	if (failure.empty() && take_snapshot() != after)
		return std::string("the threads race: their order changes the result of kernel ") +
		       launch.kernel;
	return failure;
}

static bool looks_for_races(void)
{
	const char *text = getenv("KABLATE_EMULATED_RACES");

	return text && strcmp(text, "on") == 0;
}

void emulated_launch(cudaStream_t stream, const void *kernel, const struct emulated::launch &launch)
{
	if (!is_possible(kernel, launch)) {
		note(cudaErrorInvalidConfiguration);
		return;
	}
	emulated_enqueue(stream, [launch] {
		device.failure = looks_for_races() ? run_in_both_orders(launch) :
					 run(launch, emulated::FORWARDS);
	});
}
