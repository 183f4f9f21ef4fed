#include "core/backend/cuda/primitives/token_blocks.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define SMALLEST_NORM 1e-8 /* by definition of the loss */

/* What both passes work with; M = batch * heads vectors. */
template <typename R> struct contrast {
	int64_t batch, length, heads, width, count; /* B, T, n, w, M */
	R tau;
	R *unit;	    /* u [M,w] */
	R *norm;	    /* max(|m|, 1e-8) [M] */
	R *score;	    /* u.u / tau [M,M] */
	double *row, *near; /* [M]: a row's loss, and the sum of its neighbours' scores */
	R *sums;	    /* forward: of pieces of the tokens */
	R *gradient;	    /* backward: du, then dm / T [M,w] */
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
	k.row = m->alloc<double>(k.count);
	k.near = m->alloc<double>(k.count);
	k.sums = pass == PASS_FORWARD ? alloc_token_blocks<real>(m, token_blocks_of_node(n)) : NULL;
	k.gradient = pass == PASS_BACKWARD ? m->alloc<real>(k.count * k.width) : NULL;
	return k;
}

/* Unit vectors of the means, and their products. */
template <typename P>
static void compare(const struct call *c, const contrast<typename P::real> &given,
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

/* Rows of scores become probabilities; row = logsumexp - own score, near = scores of neighbours. */
template <typename P>
static void soften(const struct call *c, const contrast<typename P::real> &given)
{
	typedef typename P::real real;
	const contrast<real> k = given;

	each_row(c, k.count, [=] __device__(int64_t i) {
		real *row = k.score + i * k.count;
		const real own = row[i];
		const int64_t first = i / k.heads * k.heads;
		real most = row[0], total = 0;

		if (threadIdx.x == 0) {
			double near = 0;

			for (int64_t j = first; j < first + k.heads; j++)
				near += i == j ? 0 : (double)row[j];
			k.near[i] = near;
		}
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK)
			most = row[j] > most ? row[j] : most;
		most = block_max(most);
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK) {
			row[j] = exp(row[j] - most);
			total += row[j];
		}
		total = block_sum(total);
		for (int64_t j = threadIdx.x; j < k.count; j += BLOCK)
			row[j] /= total;
		if (threadIdx.x == 0)
			k.row[i] = (double)(most + (real)log((double)total) - own);
	});
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = { (char *)c->work, 0 };
	const contrast<real> k = alloc_contrast<P>(&m, c->node, PASS_FORWARD);
	const int64_t pairs = k.count * (k.heads - 1);
	auto *loss = real_output<P>(c, 0), *similarity = real_output<P>(c, 1);
	auto *means = real_output<P>(c, 2);

	sum_tokens<P>(
		c, token_blocks_of_node(c->node), input<P>(c, 0), k.sums,
		[=] __device__(int64_t i, real sum) { means[i] = sum * (1 / (real)k.length); });
	compare<P>(c, k, means);
	soften<P>(c, k);
	each_row(c, 1, [=] __device__(int64_t) {
		double near = 0, row = 0;

		for (int64_t i = threadIdx.x; i < k.count; i += BLOCK) {
			near += k.near[i];
			row += k.row[i];
		}
		near = block_sum(near);
		row = block_sum(row);
		if (threadIdx.x == 0) {
			*similarity = pairs ? (real)(near / (double)pairs) * k.tau : 0;
			*loss = k.count < 2 ? 0 : (real)(row / (double)k.count);
		}
	});
}

/*
 * loss = mean_i(logsumexp_j s_ij - s_ii), s = u u' / tau: with p = softmax(s) by rows,
 * du = (p + p' - 2) u weight / (M tau), 2 standing on the diagonal;
 * u = m / norm: dm = (du - u (u.du)) / norm, or du / norm where the norm is the constant;
 * m = sum_t z_t / T.
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = { (char *)c->work, 0 };
	const contrast<real> k = alloc_contrast<P>(&m, c->node, PASS_BACKWARD);
	const int64_t columns = k.heads * k.width, n = k.batch * k.length * columns;
	const struct divisor per_token = divisor_of(columns, n), length = divisor_of(k.length, n);
	const auto *weight = real_output_gradient<P>(c, 0);
	const auto dz = input_gradient<P>(c, 0);

	compare<P>(c, k, real_output<P>(c, 2));
	soften<P>(c, k);
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

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_contrast<P>> };
}
KERNELS(ws_contrast, set)
