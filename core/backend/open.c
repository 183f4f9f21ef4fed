#include "core/backend/open.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/cpu.h"
#include "core/util/library.h"

/* The backend is compiled twice: for one run, and for replicas. */
static const char *const cuda_library[] = { "kablate_cuda.so", "kablate_cuda_replicas.so" };
static const char *const emulated_library[] = { "kablate_emulated.so",
						"kablate_emulated_replicas.so" };

typedef enum status (*cuda_opener)(struct backend *b, enum precision precision, int device,
				   int replicas, size_t replica_bytes, struct error *err);

static enum status open_library(const char *name, struct backend *b,
				const struct backend_options *o, struct error *err)
{
	cuda_opener open;

	if (library_load(name, RTLD_NOW | RTLD_LOCAL, "cuda_backend_open", (void **)&open, err) !=
	    OK)
		return fail_prefix(err, "the GPU backend cannot be loaded");
	return open(b, o->precision, o->device, o->replicas, o->replica_bytes, err);
}

static enum status open_cuda(struct backend *b, const struct backend_options *o, struct error *err)
{
	const char *library = cuda_library[o->replicas > 0];

	if (!library_is_built(library))
		return fail(err, "this build has no GPU backend: install the CUDA toolkit (nvcc), "
				 "then make; or choose CONFIG_BACKEND=cpu");
	return open_library(library, b, o, err);
}

static enum status open_emulated(struct backend *b, const struct backend_options *o,
				 struct error *err)
{
	const char *library = emulated_library[o->replicas > 0];

	if (!library_is_built(library))
		return fail(err, "the emulated GPU is not built: make emulated");
	if (open_library(library, b, o, err) != OK)
		return FAIL;
	b->name = "emulated";
	return OK;
}

enum status backend_open(struct backend *b, const struct backend_options *o, struct error *err)
{
	if (strcmp(o->name, "cpu") == 0 && o->replicas)
		return fail(err, "only a GPU can train replicas: choose CONFIG_BACKEND=cuda");
	if (strcmp(o->name, "cpu") == 0)
		return backend_cpu_open(b, o->precision, o->threads, err);
	if (strcmp(o->name, "cuda") == 0)
		return open_cuda(b, o, err);
	if (strcmp(o->name, "emulated") == 0)
		return open_emulated(b, o, err);
	return fail(err, "there is no backend '%s': choose cpu or cuda", o->name);
}

const char *backend_name_for_tests(void)
{
	const char *name = getenv("KABLATE_TEST_BACKEND");

	return name ? name : "cpu";
}

bool backend_stores_for_tests(void)
{
	return strcmp(backend_name_for_tests(), "cpu") != 0;
}

struct backend backend_for_tests(enum precision precision, int threads)
{
	const struct backend_options options = {
		.name = backend_name_for_tests(),
		.precision = precision,
		.threads = threads,
	};
	static struct backend gpu[PRECISIONS]; /* opened once: each holds memory */
	struct backend b;
	struct error err;

	if (gpu[precision].name)
		return gpu[precision];
	if (backend_open(&b, &options, &err) != OK) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	if (strcmp(options.name, "cpu") != 0)
		gpu[precision] = b;
	return b;
}
