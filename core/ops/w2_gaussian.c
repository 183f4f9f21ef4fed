/*
 * w2_gaussian: every head of every token becomes a diagonal Gaussian.
 * x [B,T,H,2D] holds D means and D raw sigmas per head, sigma = softplus(raw) + eps.
 * It may be a slice whose rows are tokens, as some channels of a wider projection are.
 *   wasserstein: y [B,T,H,2D] = (mean, sigma), bias [B,T,H] = -|y|^2 / (|tau| + eps), tau [H]
 *   overlap:     y [B,T,H,D] = mean / sqrt(sigma), bias [B,T,H] = -(|y|^2 + sum log sigma) / 2
 * What y has of the means is rotated (theta > 0), which leaves |y| as it is.  If `scaled`, y is
 * 2 / (|tau| + eps) times that, so that q.k is the cross term of the Wasserstein score.
 */
#include "core/ops/rule.h"

struct tensor *op_w2_gaussian(struct graph *g, const char *name, struct tensor *x,
			      struct tensor *tau, const struct w2_attr *attr, struct tensor **bias)
{
	struct tensor *in[] = { x, tau };
	struct node *n = graph_node(g, OP_w2_gaussian, name, attr, 2, in);

	if (bias)
		*bias = node_out(n, 1);
	return node_out(n, 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct w2_attr *attr = n->attr;
	const struct tensor *x = n->in[0], *tau = n->in[1];
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const int64_t *dim = x->dim;

	if (!all_real(n) || x->ndim != 4 || dim[3] % 2)
		return graph_misfit(g, n, "x must be real and [B,T,H,2D]");
	if (!tokens_whole(x))
		return graph_misfit(g, n, "a slice must hold all heads of a token side by side");
	if (!wasserstein && attr->score != W2_OVERLAP)
		return graph_misfit(g, n, "no such score: %d", (int)attr->score);
	if (!(attr->eps > 0))
		return graph_misfit(g, n, "eps %g is not positive", attr->eps);
	if (!(attr->theta >= 0))
		return graph_misfit(g, n, "theta %g is negative", attr->theta);
	if (attr->theta > 0 && dim[3] % 4)
		return graph_misfit(g, n, "%lld means cannot be rotated in pairs",
				    (long long)dim[3] / 2);
	if (wasserstein ? !tau || !is_vector(tau, dim[2]) : tau || attr->scaled)
		return graph_misfit(g, n,
				    wasserstein ? "tau must have the shape [H]"
						: "the overlap has no tau");
	if (graph_out(g, n, NULL, x->type, 4,
		      SHAPE(dim[0], dim[1], dim[2], wasserstein ? dim[3] : dim[3] / 2)) != OK)
		return FAIL;
	return graph_out(g, n, "bias", x->type, 3, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	const struct w2_attr *attr = n->attr;
	const double numbers = (double)tensor_count(n->out[0]), turn = attr->theta > 0 ? 3 : 0;
	double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);

	/* squares for the bias, the rotation, the factor */
	c->forward_flops = (2 + turn + (attr->scaled ? 1 : 0)) * numbers;
	c->backward_flops = (2 + turn + (attr->scaled ? 3 : 0)) * numbers;
	c->forward_bytes = x + y;
	c->backward_bytes = 2 * x + y; /* x, dx, dy */
}

/* The outputs that are used. */
#define USE_Y 1
#define USE_BIAS 2

static void apply(struct graph *g, const char *name, struct tensor *x, const struct w2_attr *attr,
		  int used)
{
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	struct tensor *tau = wasserstein ? case_param(g, "tau", x->dim[2]) : NULL, *bias;
	struct tensor *y = op_w2_gaussian(g, name, x, tau, attr, &bias);
	char output[40];

	snprintf(output, sizeof(output), "%s.y", name);
	if (used & USE_Y)
		graph_seeded_output(g, output, y);
	snprintf(output, sizeof(output), "%s.bias", name);
	if (used & USE_BIAS)
		graph_seeded_output(g, output, bias);
}

#define WASSERSTEIN .score = W2_WASSERSTEIN, .eps = 1e-2
#define OVERLAP .score = W2_OVERLAP, .eps = 1e-4
#define TURNS .theta = 100

#define CASE(name, used, x, ...)                                                 \
	static void case_##name(struct graph *g)                                 \
	{                                                                        \
		apply(g, "w2", x, &(const struct w2_attr){ __VA_ARGS__ }, used); \
	}

CASE(wasserstein, USE_Y | USE_BIAS, case_param(g, "x", 2, 5, 3, 14), WASSERSTEIN)
CASE(scaled, USE_Y, case_param(g, "x", 2, 5, 3, 14), WASSERSTEIN, .scaled = true)
CASE(bias, USE_BIAS, case_param(g, "x", 1, 3, 2, 6), WASSERSTEIN)
CASE(overlap, USE_Y | USE_BIAS, case_param(g, "x", 2, 5, 3, 14), OVERLAP)
CASE(overlap_y, USE_Y, case_param(g, "x", 1, 3, 2, 6), OVERLAP)
CASE(overlap_bias, USE_BIAS, case_param(g, "x", 1, 3, 2, 8), OVERLAP, TURNS)
CASE(one, USE_Y | USE_BIAS, case_param(g, "x", 1, 1, 1, 2), OVERLAP)
CASE(turned, USE_Y | USE_BIAS, case_param(g, "x", 2, 5, 3, 12), WASSERSTEIN, TURNS)
CASE(turned_scaled, USE_Y | USE_BIAS, case_param(g, "x", 2, 5, 3, 12), WASSERSTEIN, TURNS,
     .scaled = true)
CASE(turned_overlap, USE_Y | USE_BIAS, case_param(g, "x", 2, 5, 3, 12), OVERLAP, TURNS)
CASE(threads, USE_Y | USE_BIAS, case_param(g, "x", 1, 157, 5, 20), OVERLAP, TURNS)
/* More pairs than a block of a GPU knows the turns of. */
CASE(wide, USE_Y | USE_BIAS, case_param(g, "x", 1, 2, 1, 8208), OVERLAP, TURNS)

static void case_chain(struct graph *g)
{
	const struct w2_attr overlap = { OVERLAP, TURNS };
	const struct w2_attr distance = { WASSERSTEIN, TURNS, .scaled = true };
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 3, 2, 8)), *y, *bias;

	y = op_w2_gaussian(g, "first", x, NULL, &overlap, &bias);
	graph_seeded_output(g, "y", op_gelu(g, "after", y));
	graph_seeded_output(g, "bias", op_gelu(g, "other", bias));
	y = op_w2_gaussian(g, "second", x, case_param(g, "tau", 2), &distance, NULL);
	graph_seeded_output(g, "z", op_gelu(g, "last", y));
}

/* Channels that a thread takes together; queries and keys have one tau. */
static void case_even(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 37, 3, 64));

	apply(g, "overlap", x, &(const struct w2_attr){ OVERLAP }, USE_Y | USE_BIAS);
	apply(g, "key", x, &(const struct w2_attr){ WASSERSTEIN }, USE_Y | USE_BIAS);
}

static void case_even_turned(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 3, 37, 3, 64));
	struct tensor *tau = case_param(g, "tau", 3), *bias;
	const struct w2_attr key = { WASSERSTEIN, TURNS };
	const struct w2_attr query = { WASSERSTEIN, TURNS, .scaled = true };

	apply(g, "overlap", x, &(const struct w2_attr){ OVERLAP, TURNS }, USE_Y | USE_BIAS);
	graph_seeded_output(g, "q", op_w2_gaussian(g, "query", x, tau, &query, NULL));
	graph_seeded_output(g, "k", op_w2_gaussian(g, "key", x, tau, &key, &bias));
	graph_seeded_output(g, "key bias", bias);
}

/* Channels from `first` on of [B,T,W], as heads. */
static struct tensor *heads_of(struct graph *g, struct tensor *wide, int64_t first, int64_t heads,
			       int64_t width)
{
	return graph_reshape(g, graph_slice(g, wide, first, heads * width), 4,
			     SHAPE(wide->dim[0], wide->dim[1], heads, width));
}

static struct tensor *wide(struct graph *g, int64_t B, int64_t T, int64_t W)
{
	return op_gelu(g, "wide", case_param(g, "x", B, T, W));
}

/* None of these sizes is a multiple of a SIMD width. */
CASE(slice, USE_Y | USE_BIAS, heads_of(g, wide(g, 2, 5, 47), 3, 3, 14), WASSERSTEIN)
CASE(slice_overlap, USE_Y | USE_BIAS, heads_of(g, wide(g, 2, 5, 47), 5, 3, 14), OVERLAP)

/* Slices that overlap, and one that is read twice. */
static void case_slices_turned(struct graph *g)
{
	struct tensor *x = wide(g, 2, 5, 41), *tau = case_param(g, "tau", 3), *bias;
	const struct w2_attr key = { WASSERSTEIN, TURNS };
	const struct w2_attr query = { WASSERSTEIN, TURNS, .scaled = true };
	struct tensor *q = heads_of(g, x, 0, 3, 12), *k = heads_of(g, x, 5, 3, 12);

	graph_seeded_output(g, "q", op_w2_gaussian(g, "query", q, tau, &query, NULL));
	graph_seeded_output(g, "k", op_w2_gaussian(g, "key", k, tau, &key, &bias));
	graph_seeded_output(g, "key bias", bias);
	apply(g, "overlap", k, &(const struct w2_attr){ OVERLAP, TURNS }, USE_Y | USE_BIAS);
}

/* Side by side, as of one projection; `theta` 0: not turned. */
static void apply_slices(struct graph *g, struct tensor *x, int64_t first, double theta)
{
	struct tensor *tau = case_param(g, "tau", 3), *bias;
	const struct w2_attr key = { WASSERSTEIN, .theta = theta };
	const struct w2_attr query = { WASSERSTEIN, .theta = theta, .scaled = true };
	const struct w2_attr overlap = { OVERLAP, .theta = theta };
	struct tensor *q = heads_of(g, x, first, 3, 64), *k = heads_of(g, x, first + 192, 3, 64);

	graph_seeded_output(g, "q", op_w2_gaussian(g, "query", q, tau, &query, NULL));
	graph_seeded_output(g, "k", op_w2_gaussian(g, "key", k, tau, &key, &bias));
	graph_seeded_output(g, "key bias", bias);
	apply(g, "overlap", heads_of(g, x, first + 384, 1, 64), &overlap, USE_Y | USE_BIAS);
}

/* All of the projection is read, so its gradient is written, not added to. */
BUILD_CASE(case_even_slices, apply_slices(g, wide(g, 2, 5, 448), 0, 0))
BUILD_CASE(case_even_slices_turned, apply_slices(g, wide(g, 2, 5, 448), 0, 100))

/* Channels that a thread could take together if rows began there: the pitch, or the place, forbids
 * it. */
BUILD_CASE(case_uneven_pitch, apply_slices(g, wide(g, 1, 9, 452), 0, 100))
BUILD_CASE(case_uneven_place, apply_slices(g, wide(g, 1, 9, 456), 4, 0))

OP_CASES(w2_gaussian) = {
	OP_CASE("wasserstein", case_wasserstein),
	OP_CASE("wasserstein, scaled", case_scaled),
	OP_CASE("wasserstein, bias alone", case_bias),
	OP_CASE("overlap", case_overlap),
	OP_CASE("overlap, y alone", case_overlap_y),
	OP_CASE("overlap, bias alone", case_overlap_bias),
	OP_CASE("one element", case_one),
	OP_CASE("wasserstein, turned", case_turned),
	OP_CASE("wasserstein, turned and scaled", case_turned_scaled),
	OP_CASE("overlap, turned", case_turned_overlap),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASE("wide heads", case_wide),
	OP_CASE("even width", case_even),
	OP_CASE("even width, turned", case_even_turned),
	OP_CASE("slice", case_slice),
	OP_CASE("slice, overlap", case_slice_overlap),
	OP_CASE("slices, turned", case_slices_turned),
	OP_CASE("slices, even", case_even_slices),
	OP_CASE("slices, even and turned", case_even_slices_turned),
	OP_CASE("slices, uneven pitch", case_uneven_pitch),
	OP_CASE("slices, uneven place", case_uneven_place),
	OP_CASES_END,
};

/* A backward kernel may read y in place of making it again: attention has kept or remade it. */
const struct op op_desc_w2_gaussian = {
	.name = "w2_gaussian",
	.attr_size = sizeof(struct w2_attr),
	.min_inputs = 1,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.saves_in = BIT(0) | BIT(1),
	.saves_out = BIT(0),
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = w2_gaussian_cases,
};
