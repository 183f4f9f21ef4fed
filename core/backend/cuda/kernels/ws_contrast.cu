/*
 * ws_contrast: a contrastive loss between the mean vectors of heads,
 *
 *     loss = mean_i(logsumexp_j s_ij - s_ii),  s = u u' / tau,  u = m / |m|,  m = mean_t z_t
 *
 * over M = batch * heads vectors.  It reads z once; the M x M scores are small.
 */
#include "core/backend/cuda/primitives/token_blocks.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define SMALLEST_NORM 1e-8 /* by definition of the loss */

/* The scratch memory of both passes. */
template <typename R> struct contrast {
	int64_t batch, length, heads, width, count; /* B, T, n, w, M */
	R tau;
	R *unit;		       /* u [M,w] */
	R *norm;		       /* max(|m|, 1e-8) [M] */
	R *score;		       /* u.u / tau [M,M] */
	double *row_loss, *neighbours; /* [M]: the loss of a row; the sum of its scores with other
					  heads of its example */
	R *sums;		       /* forward: sums of token blocks */
	R *gradient;		       /* backward: du, then dm / T [M,w] */
};

/* z as [B,T,n w] */
static struct token_blocks token_blocks_of_node(const struct node *n)
{
	const int64_t *dim = n->in[0]->dim;

	return token_blocks_of(dim[0], dim[1], dim[2] * dim[3]);
}

template <typename P>
static contrast<typename P::real> alloc_contrast(struct scratch *m, const struct node *n,
						 enum pass pass)
{
	typedef typename P::real real;
	const struct ws_attr *attr = (const struct ws_attr *)n->attr;
	const int64_t *dim = n->in[0]->dim;
	contrast<real> k = { dim[0], dim[1], dim[2], dim[3], dim[0] * dim[2], (real)attr->tau };

	k.unit = m->alloc<real>(k.count * k.width);
	k.norm = m->alloc<real>(k.count);
	k.score = m->alloc<real>(k.count * k.count);
	k.row_loss = m->alloc<double>(k.count);
	k.neighbours = m->alloc<double>(k.count);
	k.sums = pass == PASS_FORWARD ? alloc_token_blocks<real>(m, token_blocks_of_node(n)) : NULL;
	k.gradient = pass == PASS_BACKWARD ? m->alloc<real>(k.count * k.width) : NULL;
	return k;
}

/* u and s from the means. */
template <typename P>
static void compute_scores(const struct call *c, const contrast<typename P::real> &given,
			   const typename P::real *means)
{
	typedef typename P::real real;
	const contrast<real> k = given;

	each_row(c, k.count, [=] __device__(int64_t i) {
		const real *m = means + i * k.width;
		real square = 0, norm;

		for (int64_t j = threadIdx.x; j < k.width; j += BLOCK)
			square += m[j] * m[j];
		norm = sqrt(block_sum(square));
		norm = norm < (real)SMALLEST_NORM ? (real)SMALLEST_NORM : norm;
		if (threadIdx.x == 0)
			k.norm[i] = norm;
		for (int64_t j = threadIdx.x; j < k.width; j += BLOCK)
			k.unit[i * k.width + j] = m[j] / norm;
	});
	const matrix<real> unit = { k.unit, k.width, 0 };

	gemm(c, false, true, k.count, k.count, k.width, 1 / (double)k.tau, unit, unit, false,
	     k.score, k.count);
}

/* Turns rows of scores into probabilities, and sets row_loss and neighbours. */
template <typename P>
static void softmax_rows(const struct call *c, const contrast<typename P::real> &given)
{
	typedef typename P::real real;
	const contrast<real> k = given;

	each_row(c, k.count, [=] __device__(int64_t i) {
		real *row = k.score + i * k.count;
		const real own = row[i];
		const int64_t first = i / k.heads * k.heads;
		real max = row[0], total = 0;

		if (threadIdx.x == 0) {
			double sum = 0;

			for (int64_t j = first; j < first + k.heads; j++)
				sum += i == j ? 0 : (double)row[j];
			k.neighbours[i] = sum;
		}
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK)
			max = row[j] > max ? row[j] : max;
		max = block_max(max);
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK) {
			row[j] = exp(row[j] - max);
			total += row[j];
		}
		total = block_sum(total);
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK)
			row[j] /= total;
		if (threadIdx.x == 0)
			k.row_loss[i] = (double)(max + (real)log((double)total) - own);
	});
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	const contrast<real> k = alloc_contrast<P>(&m, c->node, PASS_FORWARD);
	const int64_t pairs = k.count * (k.heads - 1);
	auto *loss = real_output<P>(c, 0), *similarity = real_output<P>(c, 1);
	auto *means = real_output<P>(c, 2);

	sum_tokens<P>(
		c, token_blocks_of_node(c->node), input<P>(c, 0), k.sums,
		[=] __device__(int64_t i, real sum) { means[i] = sum * (1 / (real)k.length); });
	compute_scores<P>(c, k, means);
	softmax_rows<P>(c, k);
	each_row(c, 1, [=] __device__(int64_t) {
		double neighbours = 0, row = 0;

		for (int64_t i = threadIdx.x; i < k.count; i += BLOCK) {
			neighbours += k.neighbours[i];
			row += k.row_loss[i];
		}
		neighbours = block_sum(neighbours);
		row = block_sum(row);
		if (threadIdx.x == 0) {
			*similarity = pairs ? (real)(neighbours / (double)pairs) * k.tau : 0;
			*loss = k.count < 2 ? 0 : (real)(row / (double)k.count);
		}
	});
}

/*
 * With p = softmax(s) by rows:
 *     du = (p + p' - 2 I) u weight / (M tau)
 *     dm = (du - u (u.du)) / norm, or du / norm if the norm is the constant
 *     dz_t = dm / T
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	const contrast<real> k = alloc_contrast<P>(&m, c->node, PASS_BACKWARD);
	const int64_t columns = k.heads * k.width, n = k.batch * k.length * columns;
	const struct divisor per_token = divisor_of(columns, n), length = divisor_of(k.length, n);
	const auto *weight = real_output_gradient<P>(c, 0);
	const auto dz = input_gradient<P>(c, 0);

	compute_scores<P>(c, k, real_output<P>(c, 2));
	softmax_rows<P>(c, k);
	each(c, k.count * k.count, [=] __device__(int64_t at) {
		const int64_t i = at / k.count, j = at % k.count;
		real *a = k.score + at, *b = k.score + j * k.count + i;
		const real f = (k.count < 2 ? 0 : *weight) / ((real)k.count * k.tau);

		if (j <= i)
			*a = *b = f * (*a + *b - (i == j ? 2 : 0));
	});
	const matrix<real> score = { k.score, k.count, 0 }, unit = { k.unit, k.width, 0 };

	gemm(c, false, false, k.count, k.width, k.count, 1, score, unit, false, k.gradient,
	     k.width);
	each_row(c, k.count, [=] __device__(int64_t i) {
		const real *u = k.unit + i * k.width;
		real *d = k.gradient + i * k.width, along = 0;

		for (int64_t j = threadIdx.x; j < k.width; j += BLOCK)
			along += u[j] * d[j];
		along = block_sum(along);
		if (!(k.norm[i] > (real)SMALLEST_NORM))
			along = 0;
		for (int64_t j = threadIdx.x; j < k.width; j += BLOCK)
			d[j] = (d[j] - along * u[j]) / k.norm[i] * (1 / (real)k.length);
	});
	const input_view<P> d = real_view<P>(k.gradient);

	each_vec(c, n, columns, all_of<P>(dz), [=] __device__(auto p) {
		const int64_t token = per_token.quotient(p.first);
		const vec_index<p.n, p.WIDE> from = { p.first +
						      (length.quotient(token) - token) * columns };

		dz.put(p, d[from]);
	});
}

KERNELS(ws_contrast, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_contrast<P>>)
