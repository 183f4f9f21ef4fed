#include "core/backend/cuda/decode/fused_decode.cuh"
#include "core/backend/cuda/gemm/gemv.cuh"
#include "core/backend/cuda/primitives/tokens.cuh"

typedef bfloat16_products P;

/* Numbers of the nodes; -1: there is none. */
struct chain {
	int norm, gelu, cache;
	int product, products; /* number of the first, and how many there are */
	int n;		       /* of nodes */
};

static bool is_norm(const struct node *n)
{
	return n->id == OP_norm || n->id == OP_norm_residual;
}

static const struct tensor *norm_output(const struct node *n)
{
	return n->out[n->id == OP_norm_residual ? 1 : 0];
}

/* All of `t`, in its order. */
static bool is_whole(const struct tensor *view, const struct tensor *t)
{
	return tensor_root(view) == t && tensor_contiguous(view) &&
	       tensor_count(view) == tensor_count(t);
}

static bool is_product(const struct node *n)
{
	return n->id == OP_linear && gemv<P>::takes(n);
}

/* Products that read the same x as the first, and whose outputs are taken in the same way. */
static int count_products(const struct node *const *nodes, int n)
{
	int count = 0;

	while (count < n && count < MAX_PRODUCTS && is_product(nodes[count]) &&
	       nodes[count]->in[0] == nodes[0]->in[0] &&
	       gemv<P>::outs(nodes[count]) == gemv<P>::outs(nodes[0]))
		count++;
	return count;
}

static int product_of(const struct tensor *t, const struct node *const *products, int n)
{
	for (int i = 0; i < n; i++)
		if (tensor_root(t) == products[i]->out[0])
			return i;
	return -1;
}

/* Is every token of t some columns of a row? */
static bool are_columns(const struct tensor *t)
{
	const struct tokens x = tokens_of(t);
	const int64_t O = tensor_dim(tensor_root(t), -1);

	return t->offset + x.size <= O && (x.B * x.T == 1 || x.pitch == O);
}

/* Have two views of one product a column in common? */
static bool share_columns(const struct tensor *a, const struct tensor *b)
{
	return tensor_root(a) == tensor_root(b) && a->offset < b->offset + tokens_of(b).size &&
	       b->offset < a->offset + tokens_of(a).size;
}

/* Each output goes to one place of the cache at most. */
static bool keeps_products(const struct node *cache, const struct node *const *products, int n)
{
	if (cache->id != OP_cache)
		return false;
	for (int i = 0; i < cache->n_in; i++) {
		if (product_of(cache->in[i], products, n) < 0 || !are_columns(cache->in[i]) ||
		    tokens_of(cache->out[i]).size != tokens_of(cache->in[i]).size)
			return false;
		for (int k = 0; k < i; k++)
			if (share_columns(cache->in[i], cache->in[k]))
				return false;
	}
	return true;
}

/* Activations begin at multiples of 64 bytes; parameters and views need not, nor rows of slices. */
static bool is_aligned(const struct tensor *t)
{
	return tensor_root(t)->kind == TENSOR_ACTIVATION && t->offset % 8 == 0 &&
	       tensor_contiguous(t);
}

/* The norm in front of the products, if every block can do it again. */
static bool norm_fits(const struct node *norm, const struct node *product)
{
	return is_norm(norm) && is_product(product) &&
	       is_whole(product->in[0], norm_output(norm)) &&
	       tensor_dim(product->in[0], -1) == tensor_dim(norm_output(norm), -1) &&
	       tensor_dim(product->in[0], -1) <= GEMV_STEP && gemv<P>::outs(product) == 1 &&
	       is_aligned(norm->in[0]) && (norm->id == OP_norm || is_aligned(norm->in[1]));
}

static struct chain chain_of(const struct node *const *nodes, int n)
{
	struct chain x = { -1, -1, -1, 0, 0, 0 };

	if (n > 1 && norm_fits(nodes[0], nodes[1])) {
		x.norm = 0;
		x.product = 1;
	}
	x.products = count_products(nodes + x.product, n - x.product);
	x.n = x.product + x.products;
	if (x.products == 0 || x.n == n)
		return x;
	const struct node *next = nodes[x.n];

	if (x.products == 1 && next->id == OP_gelu &&
	    is_whole(next->in[0], nodes[x.product]->out[0]))
		x.gelu = x.n++;
	else if (keeps_products(next, nodes + x.product, x.products))
		x.cache = x.n++;
	return x;
}

int cuda_fusable(enum dtype type, const struct node *const *nodes, int n)
{
	return type == F32 ? chain_of(nodes, n).n : 0;
}

/* ------------------------------------------------------------------ running */

static void keep(gemv_problem<P> *p, const struct call *cache, const struct node *const *products)
{
	for (int i = 0; i < cache->node->n_in; i++) {
		const struct tensor *x = cache->node->in[i], *y = cache->node->out[i];
		const struct tokens from = tokens_of(x), to = tokens_of(y);

		p->kept[p->n_kept++] = { product_of(x, products, p->n_products),
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
	const struct node *nodes[2 + MAX_PRODUCTS];

	(void)type;
	for (int i = 0; i < n; i++)
		nodes[i] = calls[i].node;
	const struct chain x = chain_of(nodes, n);
	const struct call *first = &calls[x.product];
	gemv_problem<P> p = gemv<P>::problem(first);

	for (int i = 1; i < x.products; i++)
		gemv<P>::add(&p, first + i);
	if (x.gelu >= 0)
		p.gelu = output<P>(&calls[x.gelu], 0);
	if (x.cache >= 0)
		keep(&p, &calls[x.cache], nodes + x.product);
	if (x.norm < 0) {
		gemv<P>::launch_plain(first, p);
		return;
	}
	p.norm = read_call<P>(&calls[x.norm]);
	gemv<P>::launch_rows<true>(first, p);
}
