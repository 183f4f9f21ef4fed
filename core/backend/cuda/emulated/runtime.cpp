/*
 * The emulated CUDA runtime: memory, streams, events, graphs and launches.
 *
 * A stream is a queue of functions.  A wait for an event is a function that runs the other stream
 * up to the event.  With KABLATE_EMULATED_RACES=on a launch runs its kernel twice, in both orders
 * of threads, and compares all device memory.  KABLATE_EMULATED_FAIL makes a call fail.
 */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <map>
#include <set>
#include <vector>

#define DEVICE_BYTES ((size_t)16 << 30)
#define VERSION 13000
#define ALIGNMENT 256 /* of cudaMalloc() */
/*
 * Shared memory of a block: on the smallest GPU that kernels support (compute capability 8.6), and
 * on 9.0.
 */
#define SHARED_BYTES (99 << 10)
#define WGMMA_SHARED_BYTES (227 << 10)
#define DEFAULT_SHARED_BYTES (48 << 10)
#define MAX_THREADS 1024
#define MAX_GRID_YZ 65535
#define MAX_QUEUED 4096

struct emulated_stream {
	std::deque<std::function<void()>> queue;
	uint64_t issued, done;
	bool runs_at_once;		  /* work runs as soon as it is issued */
	struct emulated_capture *capture; /* NULL: the stream is not captured */
};

/* One item of captured work. */
struct captured {
	enum { WORK, RECORD, WAIT } kind;
	struct emulated_stream *stream; /* NULL: the stream that launches the graph */
	std::function<void()> work;
	size_t record; /* RECORD: index of the event; WAIT: index of the event to wait for */
};

struct emulated_capture {
	struct emulated_stream *origin;
	bool invalid;
	size_t records;
	std::vector<struct captured> list;
};

struct emulated_event {
	struct emulated_stream *stream;
	uint64_t number;		  /* work items issued before it */
	struct emulated_capture *capture; /* NULL: recorded outside a capture */
	size_t record;
};

struct emulated_graph {
	std::vector<struct captured> list;
	size_t records;
};

static struct {
	std::map<char *, size_t> blocks; /* allocations of cudaMalloc() */
	size_t allocated;
	std::set<const void *> scratch; /* allocations that hold no results */
	std::set<struct emulated_stream *> streams;
	std::map<const void *, int> shared; /* dynamic shared memory that a kernel may use */
	cudaError_t error;		    /* the last one */
	std::string failure; /* error of a kernel; the device runs nothing after it */
} device;

static cudaError_t note(cudaError_t error)
{
	if (error != cudaSuccess)
		device.error = error;
	return error;
}

/*
 * KABLATE_EMULATED_FAIL=CALL:N:HOW makes the N-th call of a kind fail.  HOW: `memory`, this call
 * alone finds no memory; `kernel`, its work fails when the device runs it, and after that every
 * call; `lost`, it and every later call.  Calls are counted per kind; at the end of the process the
 * counts are written to the file KABLATE_EMULATED_COUNT, a line "CALL COUNT" each.
 */
static struct injection {
	std::map<std::string, long> calls;
	std::string call, how;
	long number = 0;

	injection()
	{
		const char *text = getenv("KABLATE_EMULATED_FAIL");
		char kind[16], way[16];

		if (!text)
			return;
		if (sscanf(text, "%15[^:]:%ld:%15s", kind, &number, way) != 3)
			abort();
		call = kind;
		how = way;
	}
	~injection()
	{
		const char *path = getenv("KABLATE_EMULATED_COUNT");
		FILE *file = path ? fopen(path, "w") : NULL;

		for (const auto &entry : calls)
			if (file)
				fprintf(file, "%s %ld\n", entry.first.c_str(), entry.second);
		if (file)
			fclose(file);
	}
} injection;

static void fail_device(const char *failure)
{
	if (device.failure.empty())
		device.failure = failure;
}

/* The error that every call returns once the device has failed. */
static cudaError_t sticky(void)
{
	return device.failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t emulated_call(const char *kind, cudaStream_t stream)
{
	if (++injection.calls[kind] != injection.number || injection.call != kind)
		return sticky();
	if (injection.how == "memory")
		return note(cudaErrorMemoryAllocation);
	if (injection.how == "kernel" && stream)
		emulated_enqueue(stream, [] { fail_device("unspecified launch failure"); });
	else
		fail_device("uncorrectable ECC error encountered");
	return sticky();
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaSuccess:
		return "no error";
	case cudaErrorInvalidValue:
		return "invalid argument";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorInvalidConfiguration:
		return "invalid configuration";
	case cudaErrorLaunchFailure:
		return device.failure.c_str();
	case cudaErrorStreamCaptureUnsupported:
		return "not permitted when stream is capturing";
	case cudaErrorStreamCaptureInvalidated:
		return "failed earlier while stream was capturing";
	case cudaErrorStreamCaptureUnjoined:
		return "capture was not ended: a stream is not joined";
	}
	return "unknown error";
}

/* The error of a kernel is sticky. */
cudaError_t cudaPeekAtLastError(void)
{
	return sticky() == cudaSuccess ? device.error : sticky();
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

static int shared_bytes_of_block(void)
{
	return emulated_has_wgmma() ? WGMMA_SHARED_BYTES : SHARED_BYTES;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int)
{
	*properties = {};
	snprintf(properties->name, sizeof(properties->name), "emulated on the CPU");
	memcpy(properties->uuid.bytes, "emulated", 8);
	properties->multiProcessorCount = 9;
	properties->sharedMemPerBlockOptin = (size_t)shared_bytes_of_block();
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
	*free_now = DEVICE_BYTES - device.allocated;
	*total = DEVICE_BYTES;
	return emulated_call("other", NULL);
}

/* --------------------------------------------------------------------- streams */

static void run_next(struct emulated_stream *s)
{
	const std::function<void()> work = std::move(s->queue.front());

	s->queue.pop_front();
	if (device.failure.empty())
		work();
	s->done++;
}

static void run_until(struct emulated_stream *s, uint64_t number)
{
	while (s->done < number)
		run_next(s);
}

static bool races_enabled(void)
{
	const char *text = getenv("KABLATE_EMULATED_RACES");

	return text && strcmp(text, "on") == 0;
}

static void enqueue(struct emulated_stream *stream, std::function<void()> work)
{
	stream->issued++;
	stream->queue.push_back(std::move(work));
	if (stream->runs_at_once)
		run_until(stream, stream->issued);
	else if (stream->queue.size() > MAX_QUEUED)
		run_next(stream);
}

static void capture_item(struct emulated_stream *stream, struct captured item)
{
	item.stream = stream == stream->capture->origin ? NULL : stream;
	stream->capture->list.push_back(std::move(item));
}

void emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
	if (stream->capture)
		capture_item(stream, { captured::WORK, NULL, std::move(work), 0 });
	else
		enqueue(stream, std::move(work));
}

/* Calls that wait for the device or change its memory invalidate a capture. */
static bool is_capturing(void)
{
	bool capturing = false;

	for (struct emulated_stream *s : device.streams)
		if (s->capture)
			capturing = s->capture->invalid = true;
	return capturing;
}

static cudaError_t wait_for_all(void)
{
	if (is_capturing())
		return note(cudaErrorStreamCaptureUnsupported);
	for (struct emulated_stream *s : device.streams)
		run_until(s, s->issued);
	return sticky();
}

cudaError_t cudaDeviceSynchronize(void)
{
	return wait_for_all();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	const cudaError_t error = emulated_call("other", NULL);
	static int made;

	if (error != cudaSuccess)
		return error;
	*stream = new struct emulated_stream();
	(*stream)->runs_at_once = races_enabled() && made++ % 2 == 1;
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
	if (is_capturing())
		return note(cudaErrorStreamCaptureUnsupported);
	run_until(stream, stream->issued);
	return emulated_call("sync", NULL);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
	const cudaError_t error = emulated_call("other", NULL);

	if (error == cudaSuccess)
		*event = new struct emulated_event();
	return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	*event = { stream, stream->issued, stream->capture, 0 };
	if (stream->capture) {
		event->record = stream->capture->records++;
		capture_item(stream, { captured::RECORD, NULL, NULL, event->record });
	}
	return emulated_call("other", NULL);
}

/* Makes the stream wait until `other` has run `number` items. */
static void follow(struct emulated_stream *stream, struct emulated_stream *other, uint64_t number)
{
	enqueue(stream, [=] { run_until(other, number); });
}

static bool is_open(const struct emulated_capture *capture)
{
	for (struct emulated_stream *s : device.streams)
		if (s->capture == capture)
			return true;
	return false;
}

/* A stream that waits for a captured event joins the capture. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	const cudaError_t error = emulated_call("other", NULL);

	if (error != cudaSuccess || !event->stream)
		return error;
	if (stream->capture && stream->capture != event->capture) {
		stream->capture->invalid = true;
		return note(cudaErrorStreamCaptureUnsupported);
	}
	if (!event->capture) {
		follow(stream, event->stream, event->number);
		return cudaSuccess;
	}
	if (!is_open(event->capture))
		return note(cudaErrorInvalidValue);
	stream->capture = event->capture;
	capture_item(stream, { captured::WAIT, NULL, NULL, event->record });
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (is_capturing())
		return note(cudaErrorStreamCaptureUnsupported);
	if (event->stream)
		run_until(event->stream, event->number);
	return emulated_call("sync", NULL);
}

/* ---------------------------------------------------------------------- memory */

cudaError_t emulated_malloc(void **memory, size_t bytes)
{
	const cudaError_t error = emulated_call("alloc", NULL);

	*memory = NULL;
	if (error != cudaSuccess)
		return error;
	if (is_capturing())
		return note(cudaErrorStreamCaptureUnsupported);
	if (bytes > DEVICE_BYTES - device.allocated)
		return note(cudaErrorMemoryAllocation);
	*memory = emulated::exact_memory(ALIGNMENT, bytes);
	if (!*memory)
		return note(cudaErrorMemoryAllocation);
	memset(*memory, EMULATED_UNSET, bytes);
	device.blocks[(char *)*memory] = bytes;
	device.allocated += bytes;
	return cudaSuccess;
}

/* Waits for the device, as CUDA does. */
cudaError_t cudaFree(void *memory)
{
	const cudaError_t error = wait_for_all();
	const auto block = device.blocks.find((char *)memory);

	if (!memory)
		return error;
	if (block == device.blocks.end())
		return note(cudaErrorInvalidValue);
	device.allocated -= block->second;
	device.blocks.erase(block);
	device.scratch.erase(memory);
	free(memory);
	return error;
}

cudaError_t emulated_malloc_host(void **memory, size_t bytes)
{
	const cudaError_t error = emulated_call("alloc", NULL);

	*memory = error == cudaSuccess ? malloc(bytes) : NULL;
	if (error != cudaSuccess)
		return error;
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

/* Is [at, at + bytes) inside one allocation? */
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
	const cudaError_t error = emulated_call("copy", stream);

	if (error != cudaSuccess)
		return error;
	if (!is_on_device(kind == cudaMemcpyHostToDevice ? to : from, bytes))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] { memcpy(to, from, bytes); });
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	const cudaError_t error = emulated_call("copy", stream);

	if (error != cudaSuccess)
		return error;
	if (!is_on_device(to, bytes))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] { memset(to, value, bytes); });
	return cudaSuccess;
}

/* Of `rows` rows that begin `pitch` bytes apart. */
static bool are_on_device(const void *at, size_t pitch, size_t width, size_t rows)
{
	return width <= pitch && is_on_device(at, (rows - 1) * pitch + width);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			      size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream)
{
	const cudaError_t error = emulated_call("copy", stream);

	if (error != cudaSuccess)
		return error;
	if (kind == cudaMemcpyHostToDevice ? !are_on_device(to, to_pitch, width, rows)
					   : !are_on_device(from, from_pitch, width, rows))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] {
		for (size_t i = 0; i < rows; i++)
			memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch,
			       width);
	});
	return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t rows,
			      cudaStream_t stream)
{
	const cudaError_t error = emulated_call("copy", stream);

	if (error != cudaSuccess)
		return error;
	if (!are_on_device(to, pitch, width, rows))
		return note(cudaErrorInvalidValue);
	emulated_enqueue(stream, [=] {
		for (size_t i = 0; i < rows; i++)
			memset((char *)to + i * pitch, value, width);
	});
	return cudaSuccess;
}

/* ---------------------------------------------------------------------- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
	if (stream->capture)
		return note(cudaErrorInvalidValue);
	stream->capture = new struct emulated_capture();
	stream->capture->origin = stream;
	return cudaSuccess;
}

/* Has the origin stream waited for all captured work?  Searches from the last item to the first. */
static bool is_joined(const struct emulated_capture *c)
{
	std::set<const struct emulated_stream *> joined_streams = { NULL };
	std::set<size_t> records;

	for (auto item = c->list.rbegin(); item != c->list.rend(); item++) {
		if (item->kind == captured::RECORD && records.count(item->record))
			joined_streams.insert(item->stream);
		if (item->kind != captured::RECORD && !joined_streams.count(item->stream))
			return false;
		if (item->kind == captured::WAIT)
			records.insert(item->record);
	}
	return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	*graph = NULL;
	struct emulated_capture *c = stream->capture;

	if (!c || c->origin != stream)
		return note(cudaErrorInvalidValue);
	for (struct emulated_stream *s : device.streams)
		if (s->capture == c)
			s->capture = NULL;
	cudaError_t error = is_joined(c) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;

	if (c->invalid)
		error = cudaErrorStreamCaptureInvalidated;
	if (error == cudaSuccess)
		*graph = new emulated_graph{ std::move(c->list), c->records };
	delete c;
	return note(error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned)
{
	const cudaError_t error = emulated_call("other", NULL);

	if (error == cudaSuccess)
		*executable = new struct emulated_graph(*graph);
	return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
	std::vector<struct emulated_event> recorded(executable->records + 1);
	const cudaError_t error = emulated_call("launch", stream);

	if (error != cudaSuccess)
		return error;
	for (const struct captured &item : executable->list) {
		struct emulated_stream *to = item.stream ? item.stream : stream;
		struct emulated_event &event = recorded[item.record];

		switch (item.kind) {
		case captured::WORK:
			emulated_enqueue(to, item.work);
			break;
		case captured::RECORD:
			event = { to, to->issued, NULL, 0 };
			break;
		case captured::WAIT:
			follow(to, event.stream, event.number);
			break;
		}
	}
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
	delete executable;
	return cudaSuccess;
}

/* -------------------------------------------------------------------- launches */

bool emulated_has_wgmma(void)
{
	const char *text = getenv("KABLATE_EMULATED_WGMMA");

	return text && strcmp(text, "on") == 0;
}

cudaError_t emulated_set_shared_memory(const void *kernel, int bytes)
{
	if (bytes > shared_bytes_of_block())
		return note(cudaErrorInvalidValue);
	device.shared[kernel] = bytes;
	return cudaSuccess;
}

static bool is_valid_launch(const void *kernel, const struct emulated::launch &l)
{
	const auto entry = device.shared.find(kernel);
	const int limit = entry == device.shared.end() || entry->second < DEFAULT_SHARED_BYTES
				  ? DEFAULT_SHARED_BYTES
				  : entry->second;

	return l.threads.count() > 0 && l.threads.count() <= MAX_THREADS && l.blocks.count() > 0 &&
	       l.blocks.x <= INT32_MAX && l.blocks.y <= MAX_GRID_YZ && l.blocks.z <= MAX_GRID_YZ &&
	       l.bytes >= 0 && l.bytes <= limit;
}

void emulated_set_scratch(const void *block)
{
	device.scratch.insert(block);
}

/* A copy of device memory, to compare or restore it. */
typedef std::map<char *, std::vector<char>> snapshot;

static snapshot take_snapshot(void)
{
	snapshot all;

	for (const auto &block : device.blocks)
		if (!device.scratch.count(block.first))
			all[block.first].assign(block.first, block.first + block.second);
	return all;
}

static void restore(const snapshot &all)
{
	for (const auto &block : all)
		memcpy(block.first, block.second.data(), block.second.size());
}

/* A race changes the result when the threads run in another order. */
static std::string run_in_both_orders(const struct emulated::launch &launch)
{
	const snapshot before = take_snapshot();
	std::string failure = run(launch, emulated::FORWARDS);
	snapshot after;

	if (!failure.empty())
		return failure;
	after = take_snapshot();
	restore(before);
	failure = run(launch, emulated::BACKWARDS);
	if (failure.empty() && take_snapshot() != after)
		return std::string("the threads race: their order changes the result of kernel ") +
		       launch.kernel;
	return failure;
}

void emulated_launch(cudaStream_t stream, const void *kernel, const struct emulated::launch &launch)
{
	if (emulated_call("launch", stream) != cudaSuccess)
		return;
	if (!is_valid_launch(kernel, launch)) {
		note(cudaErrorInvalidConfiguration);
		return;
	}
	emulated_enqueue(stream, [launch] {
		device.failure = races_enabled() ? run_in_both_orders(launch)
						 : run(launch, emulated::FORWARDS);
	});
}
