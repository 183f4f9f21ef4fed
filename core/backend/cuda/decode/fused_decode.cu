#include "core/backend/cuda/decode/fused_decode.cuh"
#include "core/backend/cuda/gemm/gemv.cuh"
#include "core/backend/cuda/primitives/tokens.cuh"

typedef bfloat16_products P;

/* Node indices within a fused chain; -1: absent. */
struct fused_chain {
	int norm, gelu, cache;
	int linear, linears; /* index of the first linear, and their count */
	int n;		     /* nodes in the chain */
};

static bool is_norm(const struct node *n)
{
	return n->id == OP_norm || n->id == OP_norm_residual;
}

static const struct tensor *norm_output(const struct node *n)
{
	return n->out[n->id == OP_norm_residual ? 1 : 0];
}

/* Is `view` all of `t`, contiguous and in order? */
static bool is_whole(const struct tensor *view, const struct tensor *t)
{
	return tensor_root(view) == t && tensor_contiguous(view) &&
	       tensor_count(view) == tensor_count(t);
}

static bool is_gemv(const struct node *n)
{
	return n->id == OP_linear && gemv<P>::takes(n);
}

/* Number of leading linears that read the same x and have the same outputs per warp. */
static int count_linears(const struct node *const *nodes, int n)
{
	int count = 0;

	while (count < n && count < GEMV_MAX_PRODUCTS && is_gemv(nodes[count]) &&
	       nodes[count]->in[0] == nodes[0]->in[0] &&
	       gemv<P>::outs(nodes[count]) == gemv<P>::outs(nodes[0]))
		count++;
	return count;
}

static int linear_index(const struct tensor *t, const struct node *const *linears, int n)
{
	for (int i = 0; i < n; i++)
		if (tensor_root(t) == linears[i]->out[0])
			return i;
	return -1;
}

/* Does every token of t occupy columns of one output row? */
static bool are_columns(const struct tensor *t)
{
	const struct tokens x = tokens_of(t);
	const int64_t O = tensor_dim(tensor_root(t), -1);

	return t->offset + x.size <= O && (x.B * x.T == 1 || x.pitch == O);
}

/* Do two views of one linear's output overlap? */
static bool share_columns(const struct tensor *a, const struct tensor *b)
{
	return tensor_root(a) == tensor_root(b) && a->offset < b->offset + tokens_of(b).size &&
	       b->offset < a->offset + tokens_of(a).size;
}

/* Can the linears write the cache? Each output may go to one cache only. */
static bool can_write_cache(const struct node *cache, const struct node *const *linears, int n)
{
	if (cache->id != OP_cache)
		return false;
	for (int i = 0; i < cache->n_in; i++) {
		if (linear_index(cache->in[i], linears, n) < 0 || !are_columns(cache->in[i]) ||
		    tokens_of(cache->out[i]).size != tokens_of(cache->in[i]).size)
			return false;
		for (int k = 0; k < i; k++)
			if (share_columns(cache->in[i], cache->in[k]))
				return false;
	}
	return true;
}

/* Activations are aligned to 64 bytes; parameters, views and rows of slices may not be. */
static bool is_aligned(const struct tensor *t)
{
	return tensor_root(t)->kind == TENSOR_ACTIVATION && t->offset % 8 == 0 &&
	       tensor_contiguous(t);
}

/* Can every block of the linears recompute the norm? */
static bool can_fuse_norm(const struct node *norm, const struct node *linear)
{
	return is_norm(norm) && is_gemv(linear) && is_whole(linear->in[0], norm_output(norm)) &&
	       tensor_dim(linear->in[0], -1) == tensor_dim(norm_output(norm), -1) &&
	       tensor_dim(linear->in[0], -1) <= GEMV_STEP && gemv<P>::outs(linear) == 1 &&
	       is_aligned(norm->in[0]) && (norm->id == OP_norm || is_aligned(norm->in[1]));
}

static struct fused_chain chain_of(const struct node *const *nodes, int n)
{
	struct fused_chain x = { -1, -1, -1, 0, 0, 0 };

	if (n > 1 && can_fuse_norm(nodes[0], nodes[1])) {
		x.norm = 0;
		x.linear = 1;
	}
	x.linears = count_linears(nodes + x.linear, n - x.linear);
	x.n = x.linear + x.linears;
	if (x.linears == 0 || x.n == n)
		return x;
	const struct node *next = nodes[x.n];

	if (x.linears == 1 && next->id == OP_gelu && is_whole(next->in[0], nodes[x.linear]->out[0]))
		x.gelu = x.n++;
	else if (can_write_cache(next, nodes + x.linear, x.linears))
		x.cache = x.n++;
	return x;
}

int cuda_fusable(enum dtype type, const struct node *const *nodes, int n)
{
	return type == F32 ? chain_of(nodes, n).n : 0;
}

/* ---------------------------------------------------------------- execution */

static void add_cache_writes(gemv_params<P> *p, const struct call *cache,
			     const struct node *const *linears)
{
	for (int i = 0; i < cache->node->n_in; i++) {
		const struct tensor *x = cache->node->in[i], *y = cache->node->out[i];
		const struct tokens from = tokens_of(x), to = tokens_of(y);

		p->cache_writes[p->n_cache_writes++] = { linear_index(x, linears, p->n_products),
							 x->offset,
							 from.size,
							 (int)from.T,
							 to.T,
							 to.pitch,
							 output<P>(cache, i) };
	}
}

void cuda_run_fused(enum dtype type, const struct call *calls, int n)
{
	const struct node *nodes[2 + GEMV_MAX_PRODUCTS];

	(void)type;
	for (int i = 0; i < n; i++)
		nodes[i] = calls[i].node;
	const struct fused_chain x = chain_of(nodes, n);
	const struct call *first = &calls[x.linear];
	gemv_params<P> p = gemv<P>::make_params(first);

	for (int i = 1; i < x.linears; i++)
		gemv<P>::add_product(&p, first + i);
	if (x.gelu >= 0)
		p.gelu = output<P>(&calls[x.gelu], 0);
	if (x.cache >= 0)
		add_cache_writes(&p, &calls[x.cache], nodes + x.linear);
	if (x.norm < 0) {
		gemv<P>::launch_plain(first, p);
		return;
	}
	p.norm = read_call<P>(&calls[x.norm]);
	gemv<P>::launch_rows<true>(first, p);
}
