#include "core/train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/engine/backend.h"
#include "core/record/journal.h"
#include "core/train/shards.h"
#include "core/train/state_text.h"
#include "core/util/hash.h"
#include "core/util/memory_file.h"
#include "core/util/replace.h"
#include "core/util/safetensors.h"

#define PATH_SIZE 4096
#define NAME_FORMAT "checkpoint-%08lld"
#define STATE "state.json"

/* state.json holds their hashes and its own, so that one flipped bit is noticed. */
static const char *const tensor_files[] = { "weights.safetensors", "optimizer.safetensors" };
enum { WEIGHTS, MOMENTS, TENSOR_FILES };

/* ------------------------------------------------------------------ writing */

/* Device memory that was read ahead: small tensors, which lie one behind the other, in one copy. */
struct window {
	const char *from;
	size_t size;
	char host[1 << 20];
};

/* Device memory, or state that is spread over ranks, handed to the writer piece by piece. */
struct source {
	const struct backend *backend;
	int replica;
	const char *device, *end; /* end: of the tensors of the file that lie there in a row */
	struct window *window;	  /* NULL: nothing is read ahead */
	struct shards *shards;	  /* NULL: `device` has it */
	int tensor;
};

/* Replicas are saved by several threads; a backend takes one call after the other. */
static enum status download(const struct backend *b, int replica, void *host, const void *device,
			    size_t size, struct error *err)
{
	enum status status;

#pragma omp critical(checkpoint_download)
	{
		const int chosen = backend_choose(b, replica);

		b->download(b, host, device, size);
		status = b->check(b, err);
		backend_choose(b, chosen);
	}
	return status;
}

static enum status fill_from_device(void *context, size_t offset, size_t size, void *buffer,
				    struct error *err)
{
	const struct source *s = context;
	const char *from = s->device + offset;
	struct window *w = s->window;

	if (s->shards)
		return shards_read(s->shards, s->tensor, offset, size, buffer, err);
	if (!w || size > sizeof(w->host))
		return download(s->backend, s->replica, buffer, from, size, err);
	if (from < w->from || from + size > w->from + w->size) {
		w->from = from;
		w->size = (size_t)(s->end - from) < sizeof(w->host) ? (size_t)(s->end - from)
								    : sizeof(w->host);
		if (download(s->backend, s->replica, w->host, from, w->size, err) != OK)
			return FAIL;
	}
	memcpy(buffer, w->host + (from - w->from), size);
	return OK;
}

static struct source param_source(const struct params *params, int replica, int i)
{
	return (struct source){
		.backend = params->backend,
		.replica = replica,
		.device = param_data(params, i),
	};
}

static struct safetensors_tensor entry(const char *name, const struct param *p, enum dtype type,
				       struct source *source)
{
	struct safetensors_tensor t = {
		.name = name,
		.type = safetensors_type_of(type),
		.ndim = p->ndim,
		.fill = fill_from_device,
		.context = source,
	};

	memcpy(t.dim, p->dim, (size_t)p->ndim * sizeof(*t.dim));
	return t;
}

/* Tensors to be written. */
struct tensor_list {
	int n;
	struct safetensors_tensor *tensors;
	struct source *sources;
	struct window *window;
};

static enum status open_list(struct tensor_list *l, int n, const char *path, struct error *err)
{
	*l = (struct tensor_list){
		.n = n,
		.tensors = calloc((size_t)n + 1, sizeof(*l->tensors)),
		.sources = calloc((size_t)n + 1, sizeof(*l->sources)),
		.window = malloc(sizeof(*l->window)),
	};
	if (!l->tensors || !l->sources || !l->window)
		return fail_memory(err, path, (size_t)n * sizeof(*l->tensors));
	l->window->from = NULL;
	l->window->size = 0;
	return OK;
}

static void close_list(struct tensor_list *l)
{
	free(l->tensors);
	free(l->sources);
	free(l->window);
}

static enum status write_list(const struct tensor_list *l, const char *path,
			      const struct safetensors_pair *pairs, int n_pairs, struct error *err)
{
	for (int i = l->n - 1; i >= 0; i--) {
		struct source *s = &l->sources[i];

		if (s->shards)
			continue;
		s->window = l->window;
		s->end = s->device + safetensors_bytes(&l->tensors[i]);
		if (i + 1 < l->n && s[1].device == s->end)
			s->end = s[1].end;
	}
	return safetensors_write(path, l->tensors, l->n, pairs, n_pairs, err);
}

/*
 * What is said about the weights, after what transformers asks for, and the file's own hash; NULL:
 * there is no memory.
 */
static struct safetensors_pair *file_metadata(const struct safetensors_pair *about, int *pairs)
{
	struct safetensors_pair *metadata;
	int n = 0;

	while (about && about[n].key)
		n++;
	*pairs = n + 2;
	metadata = malloc((size_t)*pairs * sizeof(*metadata));
	if (!metadata)
		return NULL;
	metadata[0] = (struct safetensors_pair){ "format", "pt" };
	metadata[1] = (struct safetensors_pair){ SAFETENSORS_HASH, SAFETENSORS_NO_HASH };
	for (int i = 0; i < n; i++)
		metadata[i + 2] = about[i];
	return metadata;
}

static enum status save_weights(const struct params *params, int replica, const char *path,
				const struct safetensors_pair *about, struct error *err)
{
	int pairs;
	struct safetensors_pair *metadata = file_metadata(about, &pairs);
	struct tensor_list l;
	enum status status = open_list(&l, params->n, path, err);

	if (!metadata)
		status = fail_memory(err, path, (size_t)pairs * sizeof(*metadata));
	for (int i = 0; i < params->n && status == OK; i++) {
		l.sources[i] = param_source(params, replica, i);
		l.tensors[i] =
			entry(params->list[i].name, &params->list[i], params->type, &l.sources[i]);
	}
	if (status == OK)
		status = write_list(&l, path, metadata, pairs, err);
	free(metadata);
	close_list(&l);
	return status;
}

enum status weights_save(const struct params *params, const char *path,
			 const struct safetensors_pair *about, struct error *err)
{
	return save_weights(params, backend_chosen(params->backend), path, about, err);
}

enum status checkpoint_save_weights(const struct checkpoint *c, const char *path, struct error *err)
{
	return save_weights(c->params, c->replica, path, c->about, err);
}

/* The state of all parameters. */
static const struct optim_tensor *state_tensors(const struct checkpoint *c, int *n)
{
	return c->shards ? shards_state(c->shards, n) : optimizer_tensors(c->optimizer, n);
}

static struct source state_source(const struct checkpoint *c, const struct optim_tensor *state,
				  int i)
{
	return (struct source){
		.backend = c->params->backend,
		.replica = c->replica,
		.device = state[i].data,
		.shards = c->shards,
		.tensor = i,
	};
}

static enum status optimizer_save(const struct checkpoint *c, const char *path, struct error *err)
{
	int n;
	const struct optim_tensor *state = state_tensors(c, &n);
	struct tensor_list l;
	enum status status = open_list(&l, n, path, err);

	for (int i = 0; i < n && status == OK; i++) {
		l.sources[i] = state_source(c, state, i);
		l.tensors[i] = entry(state[i].name, state[i].param, c->params->type, &l.sources[i]);
	}
	if (status == OK)
		status = write_list(&l, path, NULL, 0, err);
	close_list(&l);
	return status;
}

/* Doubles as hexadecimal text: JSON numbers would round them. */
static void print_exact(FILE *file, const char *key, double value)
{
	fprintf(file, "  \"%s\": \"%a\",\n", key, value);
}

static enum status hash_tensors(const char *dir, char hashes[TENSOR_FILES][SHA256_HEX_SIZE],
				struct error *err)
{
	char path[PATH_SIZE];

	for (int i = 0; i < TENSOR_FILES; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, tensor_files[i]);
		if (sha256_file(path, hashes[i], err) != OK)
			return FAIL;
	}
	return OK;
}

static void print_state(FILE *file, const struct checkpoint *c,
			const struct checkpoint_state *state, const struct optim_scalars *s,
			char hashes[TENSOR_FILES][SHA256_HEX_SIZE])
{
	fprintf(file, "{\n  \"identity\": \"%s\",\n", c->identity);
	for (int i = 0; i < TENSOR_FILES; i++)
		fprintf(file, "  \"%s\": \"%s\",\n", tensor_files[i], hashes[i]);
	fprintf(file, "  \"iteration\": %lld,\n", (long long)state->iteration);
	fprintf(file, "  \"best_iteration\": %lld,\n", (long long)state->best_iteration);
	print_exact(file, "best_loss", state->best_loss);
	print_exact(file, "tokens", state->tokens);
	print_exact(file, "seconds", state->seconds);
	fprintf(file, "  \"clips\": %lld,\n", (long long)state->clips);
	if (state->digest)
		fprintf(file, "  \"digest\": \"%016llx\",\n", (unsigned long long)state->digest);
	if (state->given.rows >= 0)
		fprintf(file,
			"  \"data_hash\": \"%016llx\",\n  \"data_rows\": %lld,\n"
			"  \"data_targets\": %lld,\n",
			(unsigned long long)state->given.hash, (long long)state->given.rows,
			(long long)state->given.targets);
	fprintf(file, "  \"journal_lines\": %lld,\n", (long long)state->journal.lines);
	fprintf(file, "  \"journal_sum\": \"%s\",\n", state->journal.sum.hex);
	fprintf(file, "  \"updates\": %lld,\n  \"reset_at\": %lld,\n", (long long)s->updates,
		(long long)s->reset_at);
	fprintf(file, "  \"resets\": %lld,\n  \"spikes\": %lld,\n", (long long)s->resets,
		(long long)s->spikes);
	fprintf(file, "  \"norms\": [");
	for (int i = 0; i < s->norm_count; i++)
		fprintf(file, "%s\"%a\"", i ? ", " : "", s->norms[i]);
	fprintf(file, "],\n");
}

static enum status read_scalars(const struct checkpoint *c, struct optim_scalars *scalars,
				struct error *err)
{
	const struct backend *b = c->params->backend;
	enum status status;

#pragma omp critical(checkpoint_download)
	{
		const int chosen = backend_choose(b, c->replica);

		*scalars = optimizer_scalars(c->optimizer);
		status = b->check(b, err);
		backend_choose(b, chosen);
	}
	return status;
}

static enum status state_save(const struct checkpoint *c, const struct checkpoint_state *state,
			      const char *dir, struct error *err)
{
	struct optim_scalars scalars;
	char path[PATH_SIZE], hashes[TENSOR_FILES][SHA256_HEX_SIZE], own[SHA256_HEX_SIZE];
	struct memory_file memory;
	struct replace r;

	snprintf(path, sizeof(path), "%s/" STATE, dir);
	if (read_scalars(c, &scalars, err) != OK || hash_tensors(dir, hashes, err) != OK)
		return FAIL;
	if (memory_file_open(&memory, path, err) != OK)
		return FAIL;
	print_state(memory.stream, c, state, &scalars, hashes);
	if (memory_file_close(&memory, path, err) != OK || replace_begin(&r, path, err) != OK) {
		memory_file_free(&memory);
		return FAIL;
	}
	state_hash(memory.text, memory.size, own);
	fprintf(r.stream, "%s" STATE_HASH "\"%s\"\n}\n", memory.text, own);
	memory_file_free(&memory);
	return replace_commit(&r, err);
}

double checkpoint_bytes(const struct checkpoint *c)
{
	int n;
	const struct optim_tensor *state = state_tensors(c, &n);
	double numbers = (double)params_count(c->params);

	for (int i = 0; i < n; i++)
		numbers += (double)state[i].param->count;
	return numbers * (double)dtype_size(c->params->type);
}

static enum status sync_directory(const char *path, struct error *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	enum status status = OK;

	if (fd < 0)
		return fail_errno(err, "cannot open %s", path);
	if (fsync(fd) != 0)
		status = fail_errno(err, "cannot bring %s to the disk", path);
	close(fd);
	return status;
}

/* A checkpoint directory holds files only. */
static void remove_directory(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(path);
}

static enum status write_into(const struct checkpoint *c, const struct checkpoint_state *state,
			      const char *dir, struct error *err)
{
	char path[PATH_SIZE];

	if (mkdir(dir, 0777) != 0)
		return fail_errno(err, "cannot make %s", dir);
	snprintf(path, sizeof(path), "%s/%s", dir, tensor_files[WEIGHTS]);
	if (checkpoint_save_weights(c, path, err) != OK)
		return FAIL;
	snprintf(path, sizeof(path), "%s/%s", dir, tensor_files[MOMENTS]);
	if (optimizer_save(c, path, err) != OK)
		return FAIL;
	if (state_save(c, state, dir, err) != OK)
		return FAIL;
	return sync_directory(dir, err);
}

/* --------------------------------------------------------------- what exists */

static int compare_descending(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* Iterations of the whole checkpoints, newest first; the caller frees the list. */
static enum status list_checkpoints(const char *run_dir, long long **list, int *n,
				    struct error *err)
{
	DIR *dir = opendir(run_dir);
	struct dirent *entry;
	int capacity = 0;

	*list = NULL;
	*n = 0;
	if (!dir)
		return fail_errno(err, "cannot open %s", run_dir);
	while ((entry = readdir(dir))) {
		long long iteration, *bigger;
		char rest;

		if (sscanf(entry->d_name, "checkpoint-%lld%c", &iteration, &rest) != 1)
			continue;
		if (*n == capacity) {
			capacity = 2 * capacity + 16;
			bigger = realloc(*list, (size_t)capacity * sizeof(**list));
			if (!bigger) {
				closedir(dir);
				free(*list);
				return fail_memory(err, run_dir, (size_t)capacity);
			}
			*list = bigger;
		}
		(*list)[(*n)++] = iteration;
	}
	closedir(dir);
	if (*n)
		qsort(*list, (size_t)*n, sizeof(**list), compare_descending);
	return OK;
}

int64_t checkpoint_newest(const char *run_dir)
{
	struct error ignored;
	long long *list;
	int64_t newest;
	int n;

	if (list_checkpoints(run_dir, &list, &n, &ignored) != OK)
		return -1;
	newest = n ? list[0] : -1;
	free(list);
	return newest;
}

static double directory_megabytes(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	struct stat info;
	double bytes = 0;

	if (!dir)
		return 0;
	while ((entry = readdir(dir)))
		if (fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 && S_ISREG(info.st_mode))
			bytes += (double)info.st_size;
	closedir(dir);
	return bytes / 1e6;
}

static bool fits(const struct checkpoint *c, double megabytes)
{
	return c->megabytes == 0 || megabytes <= (double)c->megabytes;
}

/*
 * From the newest on, keep as many as their number and the disk budget allow, and always the one
 * just saved.  None is later than that one: the run would have gone on from it, or put it aside.
 */
enum status checkpoint_prune(const struct checkpoint *c, int64_t saved, struct error *err)
{
	char path[PATH_SIZE];
	double megabytes = 0;
	long long *list;
	int64_t kept = 0;
	int n;

	if (list_checkpoints(c->run_dir, &list, &n, err) != OK)
		return FAIL;
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/" NAME_FORMAT, c->run_dir, list[i]);
		if (list[i] <= saved)
			megabytes += directory_megabytes(path);
		if (list[i] == saved || (list[i] < saved && kept < c->keep && fits(c, megabytes)))
			kept++;
		else
			remove_directory(path);
	}
	free(list);
	return OK;
}

enum status checkpoint_save(const struct checkpoint *c, const struct checkpoint_state *state,
			    struct error *err)
{
	char temporary[PATH_SIZE], path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/" NAME_FORMAT, c->run_dir, (long long)state->iteration);
	snprintf(temporary, sizeof(temporary), "%s/saving", c->run_dir);
	remove_directory(temporary); /* left by a crash */
	if (write_into(c, state, temporary, err) != OK) {
		remove_directory(temporary);
		return fail_prefix(err, "checkpoint %lld was not saved",
				   (long long)state->iteration);
	}
	remove_directory(path); /* a damaged one of this iteration */
	if (rename(temporary, path) != 0)
		return fail_errno(err, "cannot rename %s", temporary);
	if (sync_directory(c->run_dir, err) != OK)
		return FAIL;
	return checkpoint_prune(c, state->iteration, err);
}

/* ------------------------------------------------------------------ reading */

static enum status read_text(const char *path, char **text, struct error *err)
{
	struct stat info;
	FILE *file = fopen(path, "rb");

	if (!file || fstat(fileno(file), &info) != 0) {
		if (file)
			fclose(file);
		return fail_errno(err, "cannot read %s", path);
	}
	*text = calloc((size_t)info.st_size + 1, 1);
	if (!*text || fread(*text, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
		free(*text);
		fclose(file);
		return fail(err, "cannot read %s", path);
	}
	fclose(file);
	return OK;
}

static enum status check_hashes(const cJSON *json, const char *dir, struct error *err)
{
	char hashes[TENSOR_FILES][SHA256_HEX_SIZE];

	if (hash_tensors(dir, hashes, err) != OK)
		return FAIL;
	for (int i = 0; i < TENSOR_FILES; i++) {
		const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, tensor_files[i]);

		if (!cJSON_IsString(item) || strcmp(item->valuestring, hashes[i]) != 0)
			return fail(err, "%s/%s is damaged", dir, tensor_files[i]);
	}
	return OK;
}

/* Why a checkpoint was not loaded. */
enum obstacle {
	DAMAGED,
	FOREIGN,   /* it is whole, but belongs to another run */
	LOST,	   /* it is whole, but did not arrive in memory */
	UNCOVERED, /* it is whole, but the journal up to it is not */
};

static enum status state_load(const struct checkpoint *c, const char *dir,
			      struct checkpoint_state *state, struct optim_scalars *scalars,
			      enum obstacle *obstacle, struct error *err)
{
	enum status status = FAIL;
	const cJSON *identity;
	char path[PATH_SIZE];
	char *text = NULL;
	cJSON *json;

	snprintf(path, sizeof(path), "%s/" STATE, dir);
	if (read_text(path, &text, err) != OK)
		return FAIL;
	json = state_parse(text, state, scalars);
	identity = cJSON_GetObjectItemCaseSensitive(json, "identity");
	if (!cJSON_IsString(identity)) {
		fail(err, "%s is damaged", path);
	} else if (strcmp(identity->valuestring, c->identity) != 0) {
		*obstacle = FOREIGN;
		fail(err, "%s belongs to another configuration (identity %.12s, not %.12s)", path,
		     identity->valuestring, c->identity);
	} else {
		status = check_hashes(json, dir, err);
	}
	cJSON_Delete(json);
	free(text);
	return status;
}

static enum status check_tensor(const struct safetensors *file, const char *name,
				const struct param *p, enum dtype type,
				const struct safetensors_tensor **out, struct error *err)
{
	const struct safetensors_tensor *t = safetensors_find(file, name);

	if (!t)
		return fail(err, "it lacks '%s'", name);
	if (t->type != safetensors_type_of(type) || safetensors_elements(t) != p->count)
		return fail(err, "'%s' has another type or size", name);
	*out = t;
	return OK;
}

static enum status put_state(const struct checkpoint *c, const struct optim_tensor *state, int i,
			     const struct safetensors_tensor *t, struct error *err)
{
	if (c->shards)
		return shards_write(c->shards, i, t->data, err);
	c->params->backend->upload(c->params->backend, state[i].data, t->data,
				   safetensors_bytes(t));
	return OK;
}

/* Two passes over each file: check everything, then upload. */
static enum status load_tensors(const struct checkpoint *c, const struct safetensors *weights,
				const struct safetensors *moments, bool upload, struct error *err)
{
	const struct backend *backend = c->params->backend;
	const struct safetensors_tensor *t = NULL;
	const struct optim_tensor *state;
	enum status status = OK;
	int n;

	for (int i = 0; i < c->params->n; i++) {
		const struct param *p = &c->params->list[i];

		if (check_tensor(weights, p->name, p, c->params->type, &t, err) != OK)
			return FAIL;
		if (upload)
			backend->upload(backend, param_data(c->params, i), t->data,
					safetensors_bytes(t));
	}
	state = state_tensors(c, &n);
	for (int i = 0; i < n && status == OK; i++) {
		if (check_tensor(moments, state[i].name, state[i].param, c->params->type, &t, err))
			return FAIL;
		if (upload)
			status = put_state(c, state, i, t, err);
	}
	return status;
}

static enum status check_memory(struct source *source, const char *name,
				const struct safetensors_tensor *t, struct error *err)
{
	const size_t bytes = safetensors_bytes(t);
	void *host = malloc(bytes);
	bool same;

	if (!host)
		return fail_memory(err, name, bytes);
	if (fill_from_device(source, 0, bytes, host, err) != OK) {
		free(host);
		return FAIL;
	}
	same = memcmp(host, t->data, bytes) == 0;
	free(host);
	return same ? OK : fail(err, "audit resume FAILED: '%s' was not restored", name);
}

/* A run that goes on without its moments is another run: look whether everything arrived. */
static enum status check_restored(const struct checkpoint *c, const struct safetensors *weights,
				  const struct safetensors *moments, struct error *err)
{
	const struct safetensors_tensor *t;
	const struct optim_tensor *state;
	struct source source;
	int n;

	for (int i = 0; i < c->params->n; i++) {
		const char *name = c->params->list[i].name;

		source = param_source(c->params, c->replica, i);
		t = safetensors_find(weights, name);
		if (!t || check_memory(&source, name, t, err) != OK)
			return FAIL;
	}
	state = state_tensors(c, &n);
	for (int i = 0; i < n; i++) {
		source = state_source(c, state, i);
		t = safetensors_find(moments, state[i].name);
		if (!t || check_memory(&source, state[i].name, t, err) != OK)
			return FAIL;
	}
	return OK;
}

static enum status load_files(const struct checkpoint *c, const char *dir, enum obstacle *obstacle,
			      struct error *err)
{
	struct safetensors weights, moments;
	enum status status = FAIL;
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/%s", dir, tensor_files[WEIGHTS]);
	if (safetensors_open(&weights, path, err) != OK)
		return FAIL;
	snprintf(path, sizeof(path), "%s/%s", dir, tensor_files[MOMENTS]);
	if (safetensors_open(&moments, path, err) != OK)
		goto close_weights;
	if (load_tensors(c, &weights, &moments, false, err) == OK)
		status = load_tensors(c, &weights, &moments, true, err);
	params_changed(c->params);
	if (status == OK && check_restored(c, &weights, &moments, err) != OK) {
		*obstacle = LOST; /* the weights are no longer those of the beginning */
		status = FAIL;
	}
	safetensors_close(&moments);
close_weights:
	safetensors_close(&weights);
	return status;
}

/* Reads the state, and checks all files and the journal up to it. */
static enum status check_one(const struct checkpoint *c, long long iteration, const char *dir,
			     struct checkpoint_state *state, struct optim_scalars *scalars,
			     enum obstacle *obstacle, struct error *err)
{
	*obstacle = DAMAGED;
	if (state_load(c, dir, state, scalars, obstacle, err) != OK)
		return FAIL;
	if (state->iteration != iteration)
		return fail(err, "%s is of iteration %lld", dir, (long long)state->iteration);
	if (journal_holds(c->run_dir, &state->journal, err) == OK)
		return OK;
	*obstacle = UNCOVERED;
	return FAIL;
}

enum status checkpoint_check_all(const char *run_dir, const char *identity,
				 void (*wrong)(void *context, const char *text), void *context,
				 struct error *err)
{
	const struct checkpoint c = { .run_dir = run_dir, .identity = identity };
	struct checkpoint_state state;
	struct optim_scalars scalars;
	enum obstacle obstacle;
	char dir[PATH_SIZE - 64];
	struct error why;
	long long *list;
	int n;

	if (list_checkpoints(run_dir, &list, &n, err) != OK)
		return FAIL;
	for (int i = 0; i < n; i++) {
		snprintf(dir, sizeof(dir), "%s/" NAME_FORMAT, run_dir, list[i]);
		if (check_one(&c, list[i], dir, &state, &scalars, &obstacle, &why) != OK)
			wrong(context, why.text);
	}
	free(list);
	return OK;
}

static enum status load_one(const struct checkpoint *c, long long iteration,
			    struct checkpoint_state *state, enum obstacle *obstacle,
			    struct error *err)
{
	struct checkpoint_state read;
	struct optim_scalars scalars;
	char dir[PATH_SIZE - 64];

	snprintf(dir, sizeof(dir), "%s/" NAME_FORMAT, c->run_dir, iteration);
	if (check_one(c, iteration, dir, &read, &scalars, obstacle, err) != OK ||
	    load_files(c, dir, obstacle, err) != OK)
		return FAIL;
	*state = read;
	optimizer_set_scalars(c->optimizer, &scalars);
	return OK;
}

/* The damaged checkpoint is not removed: perhaps the disk alone was at fault. */
static enum status put_aside(const struct checkpoint *c, long long iteration, struct error *err)
{
	char path[PATH_SIZE - 16], aside[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/" NAME_FORMAT, c->run_dir, iteration);
	snprintf(aside, sizeof(aside), "%s.unusable", path);
	remove_directory(aside);
	return rename(path, aside) ? fail_errno(err, "cannot rename %s", path) : OK;
}

static void tell_unusable(long long iteration, const char *then, const struct error *why,
			  void (*warn)(void *context, const char *text), void *context)
{
	char text[ERROR_TEXT_SIZE + 100];

	snprintf(text, sizeof(text), "checkpoint %lld is unusable%s: %s", iteration, then,
		 why->text);
	warn(context, text);
}

/* The first that can be loaded; what is merely damaged is put aside on the way. */
static enum status load_first(const struct checkpoint *c, const long long *list, int n,
			      struct checkpoint_state *state, int *loaded, int *uncovered,
			      void (*warn)(void *context, const char *text), void *context,
			      struct error *err)
{
	enum obstacle obstacle;

	for (int i = 0; i < n; i++) {
		if (load_one(c, list[i], state, &obstacle, err) == OK) {
			*loaded = i;
			return OK;
		}
		if (obstacle == FOREIGN || obstacle == LOST) /* an older one would not help */
			return FAIL;
		*uncovered += obstacle == UNCOVERED;
		tell_unusable(list[i],
			      i + 1 < n	   ? ", going back to an older one"
			      : *uncovered ? ""
					   : ", going back to the beginning",
			      err, warn, context);
		if (obstacle == DAMAGED && put_aside(c, list[i], err) != OK)
			return FAIL;
	}
	return OK;
}

/* Only now: had none been covered, a journal that is brought back would help. */
static enum status put_uncovered_aside(const struct checkpoint *c, const long long *list, int n,
				       struct error *err)
{
	char path[PATH_SIZE];

	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/" NAME_FORMAT, c->run_dir, list[i]);
		if (access(path, F_OK) == 0 && put_aside(c, list[i], err) != OK)
			return FAIL;
	}
	return OK;
}

enum status checkpoint_load(const struct checkpoint *c, struct checkpoint_state *state, bool *found,
			    void (*warn)(void *context, const char *text), void *context,
			    struct error *err)
{
	int n, loaded = -1, uncovered = 0;
	enum status status;
	long long *list;

	*found = false;
	if (list_checkpoints(c->run_dir, &list, &n, err) != OK)
		return FAIL;
	status = load_first(c, list, n, state, &loaded, &uncovered, warn, context, err);
	*found = status == OK && loaded >= 0;
	if (*found)
		status = put_uncovered_aside(c, list, loaded, err);
	else if (status == OK && uncovered > 0)
		status = fail(
			err,
			"%s: it cannot continue, because its journal covers no checkpoint: bring "
			"the journal back, or start over with 'make rerun RUN=%s'",
			c->run_dir, c->run_dir);
	free(list);
	return status;
}
