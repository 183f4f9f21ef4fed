/*
 * Lowering in four steps: check that the backend has all kernels; mark live nodes and the tensors
 * that receive gradients; emit the forward instructions, and fuse calls where the backend can; emit
 * the backward instructions, with the recomputation that they need.
 */
#include "core/engine/lower.h"

#include <stdlib.h>
#include <string.h>

/* Columns of a root tensor to which some reader contributes a gradient. */
struct part {
	int64_t offset, row;
	bool written;
};

#define MAX_PARTS 8

/* The gradient of a root tensor (one that is no view). */
struct gradient {
	struct tensor *tensor;
	int expected; /* readers that will contribute */
	int n_parts;
	bool zero_first; /* the parts do not cover the tensor: start from zeros */
	bool add_always; /* the parts overlap or are too many: start from zeros and add all */
	struct part part[MAX_PARTS];
};

struct lowering {
	struct lowered *l;
	const struct graph *g;
	const struct kernels *const *kernels;
	const char *device;
	enum precision precision;
	int units;
	bool train, recompute, split_backward;
	int (*fusable)(enum dtype type, const struct node *const *nodes, int n); /* or NULL */
	bool *node_live;	    /* by node: an output depends on it */
	bool *emitted;		    /* by node: its forward instruction exists */
	bool *has_grad;		    /* by graph tensor (roots): a gradient arrives */
	struct gradient *gradients; /* by graph tensor (roots) */
	struct tensor **recomputed; /* by graph tensor (roots): its copy for the backward pass */
	bool out_of_memory;
};

/* ------------------------------------------------------ instructions and tensors */

static void *grow(struct lowering *w, void *array, int n, int *capacity, size_t size)
{
	void *bigger;

	if (n < *capacity)
		return array;
	bigger = realloc(array, (size_t)(*capacity ? 2 * *capacity : 256) * size);
	if (!bigger) {
		w->out_of_memory = true;
		return NULL;
	}
	*capacity = *capacity ? 2 * *capacity : 256;
	return bigger;
}

static struct instr *add_instr(struct lowering *w, enum instr_kind kind)
{
	struct lowered *l = w->l;
	struct instr *instrs;

	if (w->out_of_memory)
		return NULL;
	instrs = grow(w, l->instrs, l->n_instrs, &l->cap_instrs, sizeof(*instrs));
	if (!instrs)
		return NULL;
	l->instrs = instrs;
	instrs[l->n_instrs] = (struct instr){ .kind = kind, .fused = 1 };
	return &instrs[l->n_instrs++];
}

/* A tensor shaped like another, or a block of bytes when `like` is NULL. */
static struct tensor *make_tensor(struct lowering *w, enum tensor_kind kind, const char *prefix,
				  const char *name, const struct tensor *like)
{
	struct lowered *l = w->l;
	struct tensor **tensors, *t;

	if (w->out_of_memory)
		return NULL;
	tensors = grow(w, l->tensors, l->n_tensors, &l->cap_tensors, sizeof(*tensors));
	t = pool_alloc(&l->pool, sizeof(*t));
	if (tensors)
		l->tensors = tensors;
	if (!tensors || !t) {
		w->out_of_memory = true;
		return NULL;
	}
	*t = like ? *like : (struct tensor){ .param = -1 };
	t->name = pool_printf(&l->pool, "%s%s", prefix, name);
	if (!t->name)
		w->out_of_memory = true;
	t->kind = kind;
	t->producer = NULL;
	t->base = NULL;
	t->offset = 0;
	t->id = w->g->n_tensors + l->n_tensors;
	tensors[l->n_tensors++] = t;
	return t;
}

/* The same view of another base. */
static struct tensor *same_view(struct lowering *w, const struct tensor *view, struct tensor *base)
{
	struct tensor *t;

	if (!base || !view->base)
		return base;
	t = make_tensor(w, TENSOR_VIEW, base->name, ".view", view);
	if (!t)
		return NULL;
	t->type = base->type;
	t->base = base;
	t->offset = view->offset;
	return t;
}

static void add_workspace(struct lowering *w, struct instr *instr)
{
	const struct kernels *k = w->kernels[instr->node->id];
	size_t bytes = k->workspace ? k->workspace(instr->node, instr->pass, w->units) : 0;
	struct tensor *t;

	if (bytes == 0)
		return;
	t = make_tensor(w, TENSOR_SCRATCH, instr->node->name, ".work", NULL);
	if (!t)
		return;
	t->type = I32;
	t->ndim = 1;
	t->dim[0] = t->row = t->pitch = (int64_t)((bytes + 3) / 4);
	instr->work = t;
}

/* ------------------------------------------------- live nodes and gradients */

static void mark_live(struct lowering *w)
{
	const struct graph *g = w->g;

	for (int i = 0; i < g->n_outputs; i++) {
		const struct node *producer = tensor_root(g->outputs[i].tensor)->producer;

		if (producer)
			w->node_live[producer->index] = true;
	}
	for (int i = g->n_nodes - 1; i >= 0; i--) {
		const struct node *n = g->nodes[i];

		for (int j = 0; w->node_live[i] && j < n->n_in; j++) {
			const struct tensor *root = n->in[j] ? tensor_root(n->in[j]) : NULL;

			if (root && root->producer)
				w->node_live[root->producer->index] = true;
		}
	}
}

static bool has_output_gradient(const struct lowering *w, const struct node *n)
{
	for (int i = 0; i < n->n_out; i++)
		if (w->has_grad[n->out[i]->id])
			return !n->op->no_gradient;
	return false;
}

static bool needs_gradient(const struct node *n, int i)
{
	return n->in[i] && n->in[i]->needs_grad && !(n->op->constant_in & BIT(i));
}

static bool covers_root(const struct tensor *t)
{
	return !t->base || tensor_count(t) == tensor_count(t->base);
}

/* Does it consist of columns of its root?  (A slice of a reshaped tensor may consist of rows.) */
static bool is_columns(const struct tensor *t)
{
	return covers_root(t) || t->pitch == tensor_root(t)->row;
}

static struct part *part_of(struct gradient *grad, const struct tensor *t)
{
	int64_t row = covers_root(t) ? 0 : t->row; /* 0: the whole tensor */

	for (int i = 0; i < grad->n_parts; i++)
		if (grad->part[i].offset == t->offset && grad->part[i].row == row)
			return &grad->part[i];
	return NULL;
}

static void expect_contribution(struct lowering *w, const struct tensor *t)
{
	const struct tensor *root = tensor_root(t);
	struct gradient *grad = &w->gradients[root->id];

	w->has_grad[root->id] = true;
	grad->expected++;
	if (is_columns(t) && part_of(grad, t))
		return;
	if (!is_columns(t) || grad->n_parts == MAX_PARTS) {
		grad->add_always = true;
		return;
	}
	grad->part[grad->n_parts++] = (struct part){
		.offset = t->offset,
		.row = covers_root(t) ? 0 : t->row,
	};
}

static bool overlap(const struct part *a, const struct part *b)
{
	return a->row == 0 || b->row == 0 ||
	       (a->offset < b->offset + b->row && b->offset < a->offset + a->row);
}

/* Decides whether the gradient must start from zeros, and whether its parts must be added. */
static void analyse_parts(struct gradient *grad, const struct tensor *root)
{
	int64_t width = 0;

	for (int i = 0; i < grad->n_parts; i++) {
		for (int j = 0; j < i; j++)
			grad->add_always |= overlap(&grad->part[i], &grad->part[j]);
		width += grad->part[i].row == 0 ? root->row : grad->part[i].row;
	}
	grad->zero_first = grad->add_always || width != root->row;
}

static void mark_gradients(struct lowering *w)
{
	const struct graph *g = w->g;

	for (int i = 0; i < g->n_outputs; i++) {
		const struct graph_output *o = &g->outputs[i];

		if ((o->is_loss || o->seeded) && o->tensor->needs_grad)
			expect_contribution(w, o->tensor);
	}
	for (int i = g->n_nodes - 1; i >= 0; i--) {
		const struct node *n = g->nodes[i];

		if (!w->node_live[i] || !has_output_gradient(w, n))
			continue;
		for (int j = 0; j < n->n_in; j++)
			if (needs_gradient(n, j))
				expect_contribution(w, n->in[j]);
	}
	for (int i = 0; i < g->n_tensors; i++)
		if (w->has_grad[i])
			analyse_parts(&w->gradients[i], g->tensors[i]);
}

/* ---------------------------------------------------------------- gradients */

static struct tensor *make_gradient(struct lowering *w, const struct tensor *of)
{
	struct tensor *t = make_tensor(w, TENSOR_GRADIENT, "d ", of->name, of);

	if (t)
		t->type = of->gradient_type;
	return t;
}

static struct tensor *gradient_tensor(struct lowering *w, const struct tensor *root)
{
	struct gradient *grad = &w->gradients[root->id];
	struct instr *zero;

	if (grad->tensor)
		return grad->tensor;
	grad->tensor = make_gradient(w, root);
	if (!grad->tensor)
		return NULL;
	if (grad->zero_first) {
		zero = add_instr(w, INSTR_ZERO);
		if (zero)
			zero->zero = grad->tensor;
	}
	return grad->tensor;
}

/* The target of a reader's contribution to the gradient of `t`, and how it is written. */
static struct tensor *contribution(struct lowering *w, const struct tensor *t, enum grad_mode *mode)
{
	const struct tensor *root = tensor_root(t);
	struct gradient *grad = &w->gradients[root->id];
	struct part *part = part_of(grad, t);
	struct tensor *target = gradient_tensor(w, root);

	if (grad->add_always || part->written) {
		*mode = GRAD_ACCUMULATE;
	} else {
		*mode = root->kind == TENSOR_PARAM ? GRAD_MICRO : GRAD_WRITE;
		part->written = true;
	}
	return same_view(w, t, target);
}

/* May the gradient of `t` be the tensor `from` itself, without a copy? */
static bool may_borrow(const struct lowering *w, const struct tensor *t, const struct tensor *from)
{
	const struct gradient *grad = &w->gradients[tensor_root(t)->id];

	return from && from->type == t->gradient_type && t->kind == TENSOR_ACTIVATION &&
	       grad->expected == 1 && !grad->tensor;
}

static void collect_contributions(struct lowering *w, const struct node *n, struct tensor **din,
				  enum grad_mode *mode, struct tensor *const *dout)
{
	for (int i = 0; i < n->n_in; i++) {
		if (!needs_gradient(n, i))
			continue;
		if (n->op->passes_gradient && may_borrow(w, n->in[i], dout[0])) {
			w->gradients[n->in[i]->id].tensor = dout[0];
			continue;
		}
		if (n->op->shares_gradient && i == 1 && din[0] && n->in[0] != n->in[1] &&
		    may_borrow(w, n->in[1], din[0]) &&
		    w->gradients[tensor_root(n->in[0])->id].expected == 1 &&
		    n->in[0]->kind == TENSOR_ACTIVATION) {
			w->gradients[n->in[1]->id].tensor = din[0];
			continue;
		}
		din[i] = contribution(w, n->in[i], &mode[i]);
	}
}

/* ------------------------------------------------------------ recomputation */

static const struct recompute_rule *recompute_rule_of(const struct lowering *w,
						      const struct node *n)
{
	const struct kernels *k = w->kernels[n->id];

	return k->recompute_rule.made ? &k->recompute_rule : &n->op->recompute_rule;
}

static bool is_recomputed(const struct lowering *w, const struct tensor *root)
{
	const struct node *n = root->producer;

	if (!w->recompute || !n || !w->kernels[n->id]->recompute)
		return false;
	for (int i = 0; i < n->n_out; i++)
		if (n->out[i] == root)
			return recompute_rule_of(w, n)->made & BIT(i);
	return false;
}

static void recompute(struct lowering *w, const struct node *n);

/*
 * The tensor that the backward pass reads instead of a forward tensor: itself, or its recomputed
 * copy.
 */
static struct tensor *for_backward(struct lowering *w, struct tensor *t)
{
	struct tensor *root = t->base ? t->base : t;

	if (!is_recomputed(w, root))
		return t;
	if (!w->recomputed[root->id])
		recompute(w, root->producer);
	return same_view(w, t, w->recomputed[root->id]);
}

static void recompute(struct lowering *w, const struct node *n)
{
	const struct recompute_rule *r = recompute_rule_of(w, n);
	struct instr pending = {
		.kind = INSTR_KERNEL, .pass = PASS_RECOMPUTE, .node = n, .fused = 1
	};
	struct instr *instr;

	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && (r->in & BIT(i)))
			pending.in[i] = for_backward(w, n->in[i]);
	for (int i = 0; i < n->n_out; i++) {
		if (r->out & BIT(i))
			pending.saved_out[i] = n->out[i];
		if (r->made & BIT(i))
			pending.out[i] = w->recomputed[n->out[i]->id] = make_tensor(
				w, TENSOR_ACTIVATION, "recomputed ", n->out[i]->name, n->out[i]);
	}
	instr = add_instr(w, INSTR_KERNEL);
	if (!instr)
		return;
	*instr = pending;
	add_workspace(w, instr);
}

/* ------------------------------------------------------------- instructions */

static bool is_fused_loss(const struct lowering *w, const struct node *n)
{
	return w->train && w->kernels[n->id]->loss && has_output_gradient(w, n);
}

static void emit_forward(struct lowering *w, const struct node *n)
{
	struct tensor *din[OP_MAX_INPUTS] = { 0 }, *dout[OP_MAX_OUTPUTS] = { 0 };
	enum grad_mode mode[OP_MAX_INPUTS] = { 0 };
	bool fused = is_fused_loss(w, n);
	struct instr *instr;

	if (fused) {
		for (int i = 0; i < n->n_out; i++)
			dout[i] = w->gradients[n->out[i]->id].tensor;
		collect_contributions(w, n, din, mode, dout);
	}
	instr = add_instr(w, INSTR_KERNEL);
	if (!instr)
		return;
	instr->pass = fused ? PASS_LOSS : PASS_FORWARD;
	instr->node = n;
	memcpy(instr->in, n->in, sizeof(instr->in));
	memcpy(instr->out, n->out, sizeof(instr->out));
	memcpy(instr->din, din, sizeof(din));
	memcpy(instr->dout, dout, sizeof(dout));
	memcpy(instr->mode, mode, sizeof(mode));
	add_workspace(w, instr);
}

static void add_backward_instr(struct lowering *w, const struct instr *pending)
{
	const struct node *n = pending->node;
	struct instr *instr = add_instr(w, INSTR_KERNEL);

	if (!instr)
		return;
	*instr = *pending;
	if (n->op->inner_out)
		instr->inner = make_gradient(w, n->out[n->op->inner_out]);
	add_workspace(w, instr);
}

/* Adds an instruction for the gradients of these inputs, if any is needed. */
static void add_backward_for(struct lowering *w, const struct instr *pending, unsigned inputs)
{
	struct instr some = *pending;
	bool any = false;

	for (int i = 0; i < OP_MAX_INPUTS; i++) {
		if (!(inputs & BIT(i)))
			some.din[i] = NULL;
		any = any || some.din[i];
	}
	if (any)
		add_backward_instr(w, &some);
}

static void emit_backward(struct lowering *w, const struct node *n)
{
	struct instr pending = {
		.kind = INSTR_KERNEL,
		.pass = PASS_BACKWARD,
		.node = n,
		.fused = 1,
	};
	const unsigned separate_gradient_in =
		n->op->separate_gradient_in | w->kernels[n->id]->separate_gradient_in;
	bool any = false;

	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && (n->op->saves_in & BIT(i)))
			pending.in[i] = for_backward(w, n->in[i]);
	for (int i = 0; i < n->n_out; i++) {
		if (n->op->saves_out & BIT(i))
			pending.saved_out[i] = for_backward(w, n->out[i]);
		if (w->has_grad[n->out[i]->id])
			pending.dout[i] = gradient_tensor(w, n->out[i]);
	}
	collect_contributions(w, n, pending.din, pending.mode, pending.dout);
	for (int i = 0; i < n->n_in; i++)
		any = any || pending.din[i];
	if (!any)
		return;
	pending.in_place = n->op->grad_in_place && pending.din[0] && !pending.din[0]->base &&
			   pending.mode[0] == GRAD_WRITE && pending.dout[0];
	if (w->split_backward && separate_gradient_in) {
		add_backward_for(w, &pending, separate_gradient_in);
		add_backward_for(w, &pending, ~separate_gradient_in);
	} else {
		add_backward_instr(w, &pending);
	}
}

static enum status make_seeds(struct lowering *w, struct error *err)
{
	const struct graph *g = w->g;

	w->l->seeds = pool_alloc(&w->l->pool, (size_t)g->n_outputs * sizeof(*w->l->seeds));
	if (!w->l->seeds)
		return fail_memory(err, "program", (size_t)g->n_outputs);
	for (int i = 0; i < g->n_outputs; i++) {
		const struct graph_output *o = &g->outputs[i];
		enum grad_mode mode;

		if (!(o->is_loss || o->seeded) || !o->tensor->needs_grad)
			continue;
		if (w->gradients[tensor_root(o->tensor)->id].expected > 1 || o->tensor->base)
			return fail(err,
				    "output '%s' is read by other nodes too, so its gradient "
				    "cannot be given from outside",
				    o->name);
		w->l->seeds[w->l->n_seeds++] = (struct seed){
			.output = o,
			.gradient = contribution(w, o->tensor, &mode),
		};
	}
	return OK;
}

static enum status check_kernels(const struct lowering *w, struct error *err)
{
	for (int i = 0; i < w->g->n_nodes; i++) {
		const struct node *n = w->g->nodes[i];
		const struct kernels *k = w->kernels[n->id];

		if (!k || !k->forward)
			return fail(err, "%s '%s': the %s backend has no kernel for this op",
				    n->op->name, n->name, w->device);
		if (w->train && !n->op->no_gradient && !k->backward && !k->loss)
			return fail(err,
				    "%s '%s': the %s backend has no backward kernel for this op",
				    n->op->name, n->name, w->device);
	}
	return OK;
}

/* ------------------------------------------------------------- fused calls */

static bool is_ready(const struct lowering *w, const struct node *n)
{
	for (int i = 0; i < n->n_in; i++) {
		const struct node *producer = n->in[i] ? tensor_root(n->in[i])->producer : NULL;

		if (producer && !w->emitted[producer->index])
			return false;
	}
	return true;
}

static bool writes_state(const struct node *n)
{
	return n->n_out > 0 && n->out[0]->kind == TENSOR_STATE;
}

/*
 * Emits later nodes that a fused call could include: the same op on the same input, and nodes that
 * write state, as soon as their inputs exist.
 */
static void emit_early(struct lowering *w, const struct node *n)
{
	for (int i = n->index + 1; i < w->g->n_nodes; i++) {
		const struct node *next = w->g->nodes[i];
		const bool same_op = next->id == n->id && next->n_in > 0 && next->in[0] == n->in[0];

		if (!w->node_live[i] || w->emitted[i] || !(same_op || writes_state(next)) ||
		    !is_ready(w, next))
			continue;
		emit_forward(w, next);
		w->emitted[i] = true;
	}
}

static void emit_nodes(struct lowering *w)
{
	for (int i = 0; i < w->g->n_nodes; i++) {
		if (!w->node_live[i] || w->emitted[i])
			continue;
		emit_forward(w, w->g->nodes[i]);
		w->emitted[i] = true;
		if (w->fusable && w->g->state)
			emit_early(w, w->g->nodes[i]);
	}
}

#define MAX_FUSED 8

static void fuse_calls(struct lowering *w)
{
	struct lowered *l = w->l;

	for (int i = 0; i < l->n_instrs; i += l->instrs[i].fused) {
		const struct node *nodes[MAX_FUSED];
		int n = 0, fused;

		while (n < MAX_FUSED && i + n < l->n_instrs) {
			nodes[n] = l->instrs[i + n].node;
			n++;
		}
		fused = w->fusable(w->g->type, nodes, n);
		l->instrs[i].fused = fused > 1 ? fused : 1;
	}
}

/* ------------------------------------------------ order of the backward pass */

static bool has_backward(const struct lowering *w, const struct node *n)
{
	return w->node_live[n->index] && has_output_gradient(w, n);
}

/*
 * The time at which the gradient of a root tensor is complete, if each reader takes 1 and adds as
 * soon as it can.
 */
static int complete_at(const struct lowering *w, const struct tensor *root, const int *starts,
		       int *begin)
{
	const struct graph *g = w->g;
	int n = 0, time = 0;

	for (int i = root->producer->index + 1; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in && has_backward(w, g->nodes[i]); j++) {
			int at = n;

			if (!needs_gradient(g->nodes[i], j) ||
			    tensor_root(g->nodes[i]->in[j]) != root)
				continue;
			for (; at > 0 && begin[at - 1] > starts[i]; at--)
				begin[at] = begin[at - 1];
			begin[at] = starts[i];
			n++;
		}
	for (int i = 0; i < n; i++)
		time = (begin[i] > time ? begin[i] : time) + 1;
	return time;
}

/* Sets by node the time at which its backward pass could start. */
static void find_start_times(const struct lowering *w, int *starts, int *scratch)
{
	for (int i = w->g->n_nodes - 1; i >= 0; i--) {
		const struct node *n = w->g->nodes[i];

		starts[i] = 0;
		for (int j = 0; has_backward(w, n) && j < n->n_out; j++) {
			const int complete = complete_at(w, n->out[j], starts, scratch);

			starts[i] = complete > starts[i] ? complete : starts[i];
		}
	}
}

/*
 * In reverse order of the nodes.  With streams, in order of start times: an early contribution is
 * added before a late one.
 */
static enum status emit_backwards(struct lowering *w, struct error *err)
{
	const int n = w->g->n_nodes;
	int *starts = calloc((size_t)n * (1 + OP_MAX_INPUTS) + 1, sizeof(*starts)), last = 0;

	if (!starts)
		return fail_memory(err, "program", (size_t)n * sizeof(*starts));
	if (w->split_backward)
		find_start_times(w, starts, starts + n);
	for (int i = 0; i < n; i++)
		last = starts[i] > last ? starts[i] : last;
	for (int begin = 0; begin <= last; begin++)
		for (int i = n - 1; i >= 0; i--)
			if (starts[i] == begin && has_backward(w, w->g->nodes[i]) &&
			    !is_fused_loss(w, w->g->nodes[i]))
				emit_backward(w, w->g->nodes[i]);
	free(starts);
	return OK;
}

static enum status emit_all(struct lowering *w, struct error *err)
{
	const struct graph *g = w->g;

	if (w->train && g->state)
		return fail(err, "a graph that continues its last run cannot be trained");
	if (check_kernels(w, err) != OK)
		return FAIL;
	storage_assign(g, w->precision);
	mark_live(w);
	if (w->train) {
		mark_gradients(w);
		if (make_seeds(w, err) != OK)
			return FAIL;
		if (w->l->n_seeds == 0)
			return fail(err, "nothing to train: no loss depends on a parameter");
	}
	emit_nodes(w);
	if (w->fusable)
		fuse_calls(w);
	if (w->train && emit_backwards(w, err) != OK)
		return FAIL;
	if (w->out_of_memory)
		return fail_memory(err, "program", 0);
	return OK;
}

enum status lower_graph(struct lowered *l, const struct graph *g, const struct backend *backend,
			bool train, bool recompute, bool split_backward, struct error *err)
{
	const size_t n = (size_t)g->n_tensors + 1;
	enum status status = FAIL;
	struct lowering w = {
		.l = l,
		.g = g,
		.kernels = backend->kernels(g->type),
		.device = backend->name,
		.precision = backend->precision,
		.units = backend->units,
		.train = train,
		.recompute = train && recompute,
		.split_backward = split_backward,
		.fusable = train ? NULL : backend->fusable,
		.node_live = calloc((size_t)g->n_nodes + 1, sizeof(bool)),
		.emitted = calloc((size_t)g->n_nodes + 1, sizeof(bool)),
		.has_grad = calloc(n, sizeof(bool)),
		.gradients = calloc(n, sizeof(struct gradient)),
		.recomputed = calloc(n, sizeof(struct tensor *)),
	};

	*l = (struct lowered){ 0 };
	if (w.node_live && w.emitted && w.has_grad && w.gradients && w.recomputed)
		status = emit_all(&w, err);
	else
		fail_memory(err, "program", n * sizeof(struct gradient));
	free(w.node_live);
	free(w.emitted);
	free(w.has_grad);
	free(w.gradients);
	free(w.recomputed);
	if (status != OK)
		lower_free(l);
	return status;
}

void lower_free(struct lowered *l)
{
	pool_free(&l->pool);
	free(l->instrs);
	free(l->tensors);
	*l = (struct lowered){ 0 };
}
