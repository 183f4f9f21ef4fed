/*
 * Creating and running a program: it lowers the graph, plans and allocates the arena, binds the
 * addresses of every instruction, and schedules streams.  A run issues the instructions in order,
 * on streams, or as a replayed graph; or one by one with checks.
 */
#include "core/engine/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/arena.h"
#include "core/engine/streams.h"
#include "core/engine/replay.h"
#include "core/util/bf16.h"

#define UPLOAD_CHUNK 1024 /* elements that are rounded at a time */

struct program {
	const struct graph *graph;
	const struct backend *backend;
	struct program_options options;
	struct lowered lowered;
	struct arena arena;
	char *memory;		   /* the arena */
	struct call *calls;	   /* by instruction */
	int streams;		   /* streams of the schedule; 0: run in order on one stream */
	struct stream_step *steps; /* by issue order; NULL: no streams */
	int *lengths;		   /* by instruction: its launches, counted in the first run */
	int runs;		   /* 2: two or more */
	int stream_ends[MAX_STREAMS];
	const void **losses; /* device: addresses of the losses, at the end of the memory */
	int n_losses;
	struct run run;
	program_watcher watch; /* or NULL */
	void *watch_context;
	bool follows_past;	  /* launches depend on run.past */
	struct replay replays[2]; /* for runs that overwrite gradients, and runs that add to them */
};

/* ----------------------------------------------------------------- creation */

static void *address(const struct program *p, const struct tensor *t)
{
	const struct tensor *root;
	const struct placement *place;
	char *start;

	if (!t || t->type == NOTHING)
		return NULL;
	root = tensor_root(t);
	place = arena_placement(&p->arena, root);
	if (root->kind == TENSOR_STATE)
		start = param_data(p->graph->state, root->param);
	else if (is_in_params(root))
		start = root->kind == TENSOR_GRADIENT ? param_grad(p->graph->params, root->param)
						      : param_data(p->graph->params, root->param);
	else if (!place)
		return NULL;
	else
		start = p->memory + place->offset;
	return start + (size_t)t->offset * dtype_size(t->type);
}

static void bind(struct program *p, int index)
{
	const struct instr *instr = &p->lowered.instrs[index];
	struct call *call = &p->calls[index];

	call->node = instr->node;
	call->run = &p->run;
	call->backend = p->backend;
	call->inner = address(p, instr->inner);
	call->work = address(p, instr->work);
	for (int i = 0; i < OP_MAX_INPUTS; i++) {
		call->in[i] = address(p, instr->in[i]);
		call->din[i] = address(p, instr->din[i]);
		call->mode[i] = instr->mode[i];
	}
	for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
		call->out[i] = address(p, instr->out[i] ? instr->out[i] : instr->saved_out[i]);
		call->dout[i] = address(p, instr->dout[i]);
	}
}

/* Copies belong to the parameters, so programs share them. */
static enum status find_copies_of(const struct program *p, const struct instr *instr, int input,
				  const struct param_copy *copy[PARAM_COPIES], struct error *err)
{
	const struct kernels *k = p->backend->kernels(p->graph->type)[instr->node->id];
	const struct tensor *t = instr->node->in[input];

	if (!k->copy_bytes || !t || t->kind != TENSOR_PARAM)
		return OK;
	for (int i = 0; i < PARAM_COPIES; i++) {
		const size_t bytes = k->copy_bytes(instr->node, instr->pass, input, i);

		if (bytes &&
		    param_copy_of(p->graph->params, t->param, i, bytes, &copy[i], err) != OK)
			return FAIL;
	}
	return OK;
}

static enum status find_copies(const struct program *p, int index,
			       const struct param_copy *copy[OP_MAX_INPUTS][PARAM_COPIES],
			       struct error *err)
{
	const struct instr *instr = &p->lowered.instrs[index];

	if (instr->kind != INSTR_KERNEL)
		return OK;
	for (int input = 0; input < instr->node->n_in; input++)
		if (find_copies_of(p, instr, input, copy[input], err) != OK)
			return FAIL;
	return OK;
}

static void upload_scalar(struct program *p, const struct tensor *t, double value)
{
	const float f32 = (float)value;

	if (t->type == F64)
		p->backend->upload(p->backend, address(p, t), &value, sizeof(value));
	else
		p->backend->upload(p->backend, address(p, t), &f32, sizeof(f32));
}

/* Streams help short instructions.  Only training programs have many of them. */
static int streams_for(const struct graph *g, const struct backend *b, bool train)
{
	int64_t elements = 0;

	if (!train || b->streams == 0)
		return 0;
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->kind == TENSOR_ACTIVATION)
			elements += tensor_count(g->tensors[i]);
	return elements > b->stream_max_elements ? 0 : b->streams;
}

static bool follows_past(const struct program *p)
{
	for (int i = 0; i < p->graph->n_nodes; i++) {
		const struct node *n = p->graph->nodes[i];
		const struct kernels *k = p->backend->kernels(p->graph->type)[n->id];

		if (k->follows_past && k->follows_past(n))
			return true;
	}
	return false;
}

static size_t losses_bytes(const struct graph *g)
{
	size_t n = 0;

	for (int i = 0; i < g->n_outputs; i++)
		n += g->outputs[i].is_loss;
	return n * sizeof(const void *);
}

/* Lowers the graph and plans its memory, but allocates none. */
static enum status prepare(struct program **out, const struct graph *g,
			   const struct backend *backend, const struct program_options *options,
			   struct error *err)
{
	struct program *p = calloc(1, sizeof(*p));
	struct arena_options sharing;

	if (!p)
		return fail_memory(err, "program", sizeof(*p));
	p->graph = g;
	p->backend = backend;
	p->options = *options;
	p->streams = streams_for(g, backend, options->train);
	sharing = (struct arena_options){ .separate = options->no_planner,
					  .has_streams = p->streams > 0 };
	if (lower_graph(&p->lowered, g, backend, options->train, !options->no_recompute,
			p->streams > 0, err) != OK ||
	    arena_plan(&p->arena, g, &p->lowered, sharing, err) != OK) {
		program_destroy(p);
		return FAIL;
	}
	p->arena.bytes = (p->arena.bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *) +
			 losses_bytes(g);
	p->follows_past = follows_past(p);
	*out = p;
	return OK;
}

/* -------------------------------------------------------------------- streams */

struct use_list {
	struct stream_use *uses;
	int n;
};

static void add_use(const struct program *p, struct use_list *list, int user,
		    const struct tensor *t, bool writes)
{
	const char *at = address(p, t);

	if (!at)
		return;
	list->uses[list->n++] = (struct stream_use){
		.user = user,
		.at = at,
		.bytes = (size_t)((tensor_count(t) / t->row - 1) * t->pitch + t->row) *
			 dtype_size(t->type),
		.writes = writes,
	};
}

#define MAX_USES (2 * OP_MAX_INPUTS + 3 * OP_MAX_OUTPUTS + 3)

static void add_uses(const struct program *p, struct use_list *list, int user)
{
	const struct instr *instr = &p->lowered.instrs[user];

	for (int i = 0; i < OP_MAX_INPUTS; i++) {
		add_use(p, list, user, instr->in[i], false);
		add_use(p, list, user, instr->din[i], true);
	}
	for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
		add_use(p, list, user, instr->saved_out[i], false);
		add_use(p, list, user, instr->dout[i], false);
		add_use(p, list, user, instr->out[i], true);
	}
	add_use(p, list, user, instr->inner, true);
	add_use(p, list, user, instr->work, true);
	add_use(p, list, user, instr->zero, true);
}

static enum status choose_streams(struct program *p, struct error *err)
{
	const size_t n = (size_t)p->lowered.n_instrs + 1;
	struct use_list list = { .uses = malloc(n * MAX_USES * sizeof(*list.uses)) };
	enum status status;

	if (!list.uses)
		return fail_memory(err, "streams", n * MAX_USES * sizeof(*list.uses));
	for (int i = 0; i < p->lowered.n_instrs; i++)
		add_uses(p, &list, i);
	status = streams_assign(p->steps, p->lowered.n_instrs, p->streams, p->lengths, list.uses,
				list.n, p->stream_ends, err);
	free(list.uses);
	return status;
}

static enum status create_schedule(struct program *p, struct error *err)
{
	const size_t n = (size_t)p->lowered.n_instrs + 1;

	if (p->streams == 0)
		return OK;
	p->steps = malloc(n * sizeof(*p->steps));
	p->lengths = malloc(n * sizeof(*p->lengths));
	if (!p->steps || !p->lengths)
		return fail_memory(err, "streams", n * sizeof(*p->steps));
	for (size_t i = 0; i < n; i++)
		p->lengths[i] = 1;
	return choose_streams(p, err);
}

static enum status list_losses(struct program *p, struct error *err)
{
	const struct graph *g = p->graph;
	const size_t bytes = (size_t)(g->n_outputs + 1) * sizeof(*p->losses);
	const void **list = malloc(bytes);

	if (!list)
		return fail_memory(err, "losses", bytes);
	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss)
			list[p->n_losses++] = address(p, g->outputs[i].tensor);
	p->losses = (const void **)(void *)(p->memory + p->arena.bytes - losses_bytes(g));
	if (p->n_losses)
		p->backend->upload(p->backend, p->losses, list, losses_bytes(g));
	free(list);
	return OK;
}

enum status program_create(struct program **out, const struct graph *g,
			   const struct backend *backend, const struct program_options *options,
			   struct error *err)
{
	struct program *p;

	if (!g->params->data || (options->train && !g->params->grad))
		return fail(err, "the parameters have no memory yet");
	if (g->state && g->state->n && !g->state->data)
		return fail(err, "the state has no memory yet");
	if (prepare(&p, g, backend, options, err) != OK)
		return FAIL;
	p->memory = backend->alloc(backend, p->arena.bytes);
	p->calls = calloc((size_t)p->lowered.n_instrs + 1, sizeof(*p->calls));
	if (!p->memory || !p->calls) {
		fail_alloc(backend, "activations and gradients", p->arena.bytes, err);
		program_destroy(p);
		return FAIL;
	}
	for (int i = 0; i < p->lowered.n_instrs; i++) {
		bind(p, i);
		if (find_copies(p, i, p->calls[i].copy, err) != OK) {
			program_destroy(p);
			return FAIL;
		}
	}
	if (create_schedule(p, err) != OK || list_losses(p, err) != OK) {
		program_destroy(p);
		return FAIL;
	}
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->values)
			program_upload(p, g->tensors[i], g->tensors[i]->values);
	for (int i = 0; i < p->lowered.n_seeds; i++)
		if (p->lowered.seeds[i].output->is_loss)
			upload_scalar(p, p->lowered.seeds[i].gradient,
				      p->lowered.seeds[i].output->loss_weight);
	*out = p;
	return OK;
}

enum status program_measure(const struct graph *g, const struct backend *backend,
			    const struct program_options *options, size_t *arena_bytes,
			    struct error *err)
{
	const struct param_copy *ignored[OP_MAX_INPUTS][PARAM_COPIES];
	enum status status = OK;
	struct program *p;

	if (prepare(&p, g, backend, options, err) != OK)
		return FAIL;
	*arena_bytes = p->arena.bytes;
	for (int i = 0; i < p->lowered.n_instrs && status == OK; i++)
		status = find_copies(p, i, ignored, err);
	program_destroy(p);
	return status;
}

void program_destroy(struct program *p)
{
	if (!p)
		return;
	for (int i = 0; i < 2; i++)
		replay_reset(&p->replays[i], p->backend);
	if (p->memory)
		p->backend->release(p->backend, p->memory);
	lower_free(&p->lowered);
	arena_free(&p->arena);
	free(p->calls);
	free(p->steps);
	free(p->lengths);
	free(p);
}

/* ------------------------------------------------------------------ running */

/* Index of the first non-finite element. */
static int64_t find_nonfinite(const struct program *p, const struct tensor *t)
{
	if (t->type == I32 || t->type == NOTHING)
		return -1;
	return p->backend->find_nonfinite(p->backend, address(p, t), t->type,
					  tensor_count(t) / t->row, t->row, t->pitch);
}

static enum status check_list(const struct program *p, const struct instr *instr,
			      struct tensor *const *list, int n, struct error *err)
{
	for (int i = 0; i < n; i++) {
		int64_t at = list[i] ? find_nonfinite(p, list[i]) : -1;

		if (at >= 0)
			return fail(err,
				    "%s '%s' (%s) made a NaN or infinity in '%s', element %lld",
				    instr->node->op->name, instr->node->name,
				    instr->pass == PASS_BACKWARD ? "backward" : "forward",
				    list[i]->name, (long long)at);
	}
	return OK;
}

static enum status check_params(const struct program *p, struct error *err)
{
	for (int i = 0; i < p->graph->n_tensors; i++) {
		const struct tensor *t = p->graph->tensors[i];

		if (t->kind == TENSOR_PARAM && find_nonfinite(p, t) >= 0)
			return fail(err, "parameter '%s' holds a NaN or infinity, element %lld",
				    t->name, (long long)find_nonfinite(p, t));
	}
	return OK;
}

static void run_instr(struct program *p, int index)
{
	const struct instr *instr = &p->lowered.instrs[index];
	const struct kernels *k;

	if (instr->kind == INSTR_ZERO) {
		if (is_in_params(instr->zero) && run_adds(&p->run))
			return;
		p->backend->zero(p->backend, address(p, instr->zero), tensor_bytes(instr->zero));
		return;
	}
	k = p->backend->kernels(p->graph->type)[instr->node->id];
	switch (instr->pass) {
	case PASS_FORWARD:
		k->forward(&p->calls[index]);
		break;
	case PASS_BACKWARD:
		k->backward(&p->calls[index]);
		break;
	case PASS_RECOMPUTE:
		k->recompute(&p->calls[index]);
		break;
	case PASS_LOSS:
		k->loss(&p->calls[index]);
		break;
	}
}

/* Checks every output of every instruction for NaN and infinity. */
static enum status run_checked(struct program *p, struct error *err)
{
	if (check_params(p, err) != OK)
		return FAIL;
	for (int i = 0; i < p->lowered.n_instrs; i++) {
		const struct instr *instr = &p->lowered.instrs[i];

		run_instr(p, i);
		if (p->backend->check(p->backend, err) != OK ||
		    (p->watch && p->watch(p->watch_context, i + 1, err) != OK))
			return FAIL;
		if (instr->kind == INSTR_ZERO)
			continue;
		if (check_list(p, instr, instr->out, OP_MAX_OUTPUTS, err) != OK ||
		    check_list(p, instr, instr->din, OP_MAX_INPUTS, err) != OK)
			return FAIL;
	}
	return OK;
}

static void wait_for_steps(const struct program *p, const int *steps, int n)
{
	for (int i = 0; i < n; i++)
		if (steps[i] >= 0)
			p->backend->wait_event(p->backend, steps[i]);
}

static void run_on_streams(struct program *p)
{
	const struct backend *b = p->backend;
	const int start_event = p->lowered.n_instrs;
	bool started[MAX_STREAMS] = { true };
	int64_t issued;

	b->record_event(b, start_event);
	for (int i = 0; i < p->lowered.n_instrs; i++) {
		const struct stream_step *step = &p->steps[i];

		b->use_stream(b, step->stream);
		if (!started[step->stream])
			b->wait_event(b, start_event);
		started[step->stream] = true;
		wait_for_steps(p, step->waits, step->n_waits);
		issued = b->issued(b);
		run_instr(p, step->instr);
		p->lengths[step->instr] = (int)(b->issued(b) - issued);
		if (step->records_event)
			b->record_event(b, step->instr);
	}
	b->use_stream(b, 0);
	wait_for_steps(p, p->stream_ends, MAX_STREAMS);
}

static void run_all(void *program)
{
	struct program *p = program;

	if (p->streams > 0) {
		run_on_streams(p);
		return;
	}
	for (int i = 0; i < p->lowered.n_instrs; i += p->lowered.instrs[i].fused) {
		const int n = p->lowered.instrs[i].fused;

		if (n == 1)
			run_instr(p, i);
		else
			p->backend->run_fused(p->graph->type, &p->calls[i], n);
	}
}

/* The watcher acts between instructions, so the run cannot be captured. */
static enum status run_watched(struct program *p, struct error *err)
{
	for (int i = 0; i < p->lowered.n_instrs; i++) {
		run_instr(p, i);
		if (p->watch(p->watch_context, i + 1, err) != OK)
			return FAIL;
	}
	return p->backend->check(p->backend, err);
}

/*
 * Are the launches the same in every run?  Where runs continue each other, they may depend on the
 * past.
 */
static bool is_replayable(const struct program *p)
{
	return !p->follows_past ||
	       (p->run.past == 0 && (!p->graph->state || p->graph->state->n == 0));
}

/* After the first run, reschedules the streams with the lengths that it measured. */
static enum status count_run(struct program *p, struct error *err)
{
	if (p->streams == 0 || p->runs == 2)
		return OK;
	p->runs++;
	return p->runs == 2 ? choose_streams(p, err) : OK;
}

/* What the host decides holds for all replicas. */
static bool differ_in_seed_only(const struct run *runs, int n)
{
	for (int i = 1; i < n; i++)
		if (runs[i].iteration != runs->iteration || runs[i].micro != runs->micro ||
		    runs[i].alone != runs->alone || runs[i].past != runs->past)
			return false;
	return true;
}

enum status program_run(struct program *p, const struct run *runs, struct error *err)
{
	assert(differ_in_seed_only(runs, backend_replicas(p->backend)));
	p->run = *runs;
	/*
	 * In this order: kernels may read copies of parameters as soon as begin_run() was issued.
	 */
	params_prepare(p->graph->params);
	p->backend->begin_run(p->backend, runs);
	if (p->options.check_nan)
		return run_checked(p, err);
	if (p->watch)
		return run_watched(p, err);
	if (count_run(p, err) != OK)
		return FAIL;
	if (is_replayable(p))
		replay_run(&p->replays[run_adds(runs)], p->backend, run_all, p);
	else
		run_all(p);
	return p->backend->check(p->backend, err);
}

int program_loss_count(const struct program *p)
{
	return p->n_losses;
}

void program_collect_losses(const struct program *p, double *to)
{
	p->backend->collect(p->backend, p->graph->type, (const void *const *)p->losses, p->n_losses,
			    to);
}

void program_watch(struct program *p, program_watcher watch, void *context)
{
	p->watch = watch;
	p->watch_context = context;
}

static bool is_gradient_of(const struct tensor *t, int param)
{
	return t && tensor_root(t)->kind == TENSOR_GRADIENT && tensor_root(t)->param == param;
}

static bool writes_gradient(const struct instr *instr, int param)
{
	for (int i = 0; i < OP_MAX_INPUTS; i++)
		if (is_gradient_of(instr->din[i], param))
			return true;
	return is_gradient_of(instr->zero, param);
}

void program_gradient_span(const struct program *p, int param, int *first, int *last)
{
	*first = p->lowered.n_instrs;
	*last = 0;
	for (int i = 0; i < p->lowered.n_instrs; i++) {
		if (!writes_gradient(&p->lowered.instrs[i], param))
			continue;
		*first = i < *first ? i : *first;
		*last = i + 1;
	}
}

int program_step_count(const struct program *p)
{
	return p->lowered.n_instrs;
}

struct program_step program_step(const struct program *p, int index)
{
	const struct instr *instr = &p->lowered.instrs[index];

	return (struct program_step){ .node = instr->node, .pass = instr->pass };
}

void program_run_step(struct program *p, int index)
{
	struct error ignored; /* the next whole run reports it */

	run_instr(p, index);
	p->backend->wait(p->backend, &ignored);
}

void program_check_nan(struct program *p, bool on)
{
	p->options.check_nan = on;
}

/* Rounds floats of the host to bfloat16 and uploads them, a chunk at a time. */
static void upload_rounded(const struct program *p, const struct tensor *t, const float *host)
{
	const int64_t n = tensor_count(t);
	bf16 *device = address(p, t), chunk[UPLOAD_CHUNK];

	for (int64_t first = 0; first < n; first += UPLOAD_CHUNK) {
		const int64_t count = n - first < UPLOAD_CHUNK ? n - first : UPLOAD_CHUNK;

		for (int64_t i = 0; i < count; i++)
			chunk[i] = bf16_round(host[first + i]);
		p->backend->upload(p->backend, device + first, chunk, (size_t)count * sizeof(bf16));
	}
}

static void upload(const struct program *p, const struct tensor *t, const void *host)
{
	if (t->type == BF16)
		upload_rounded(p, t, host); /* never REPLICAS_EACH: chunks hold one replica */
	else
		p->backend->upload(p->backend, address(p, t), host, tensor_bytes(t));
}

void program_upload(struct program *p, const struct tensor *t, const void *host)
{
	assert(tensor_contiguous(t));
	if (address(p, t))
		upload(p, t, host);
}

/* From the last element to the first, since both share memory. */
static void widen_in_place(void *values, int64_t n)
{
	float *f32 = values;
	bf16 *half = values;

	for (int64_t i = n - 1; i >= 0; i--)
		f32[i] = bf16_widen(half[i]);
}

void program_download(const struct program *p, const struct tensor *t, void *host)
{
	assert(tensor_contiguous(t));
	p->backend->download(p->backend, host, address(p, t), tensor_bytes(t));
	if (t->type == BF16)
		widen_in_place(host, tensor_count(t));
}

/* From the last float to the first, since both share memory. */
static void widen_to_double(double *values, int64_t n)
{
	float f32;

	for (int64_t i = n - 1; i >= 0; i--) {
		memcpy(&f32, (const char *)values + (size_t)i * sizeof(f32), sizeof(f32));
		values[i] = (double)f32;
	}
}

void program_read(const struct program *p, const struct tensor *t, double *values)
{
	program_download(p, t, values);
	if (t->type != F64)
		widen_to_double(values, tensor_count(t));
}

void program_read_each(const struct program *p, const struct tensor *t, double *values)
{
	const int chosen = backend_choose(p->backend, REPLICAS_EACH);

	assert(tensor_contiguous(t) && t->type != BF16);
	p->backend->download(p->backend, values, address(p, t), tensor_bytes(t));
	backend_choose(p->backend, chosen);
	if (t->type != F64)
		widen_to_double(values, backend_replicas(p->backend) * tensor_count(t));
}

double program_scalar(const struct program *p, const struct tensor *t)
{
	double f64 = 0;
	float f32 = 0;

	if (t->type == F64) {
		p->backend->download(p->backend, &f64, address(p, t), sizeof(f64));
		return f64;
	}
	p->backend->download(p->backend, &f32, address(p, t), sizeof(f32));
	return (double)f32;
}

void program_upload_seed(struct program *p, const struct tensor *output, const void *host)
{
	for (int i = 0; i < p->lowered.n_seeds; i++)
		if (p->lowered.seeds[i].output->tensor == output)
			upload(p, p->lowered.seeds[i].gradient, host);
}

void program_loss_weight(struct program *p, const char *name, double weight)
{
	for (int i = 0; i < p->lowered.n_seeds; i++)
		if (strcmp(p->lowered.seeds[i].output->name, name) == 0)
			upload_scalar(p, p->lowered.seeds[i].gradient, weight);
}

double program_loss_weight_of(const struct program *p, const char *name)
{
	for (int i = 0; i < p->lowered.n_seeds; i++)
		if (strcmp(p->lowered.seeds[i].output->name, name) == 0)
			return program_scalar(p, p->lowered.seeds[i].gradient);
	return 0;
}

size_t program_arena_bytes(const struct program *p)
{
	return p->arena.bytes;
}
