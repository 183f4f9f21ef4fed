/* matmul: strided batched GEMMs.  What several matrices of a batch share is summed up in order. */
#include "core/backend/cuda/gemm/gemm.cuh"

extern "C" {
#include "core/ops/matmul.h"
}

template <typename P> struct operands {
	typename P::factor *a, *b, *dy; /* rounded copies, contiguous */
};

template <typename P>
static operands<P> alloc_scratch(struct scratch *m, const struct node *n, enum pass pass)
{
	typedef typename P::factor factor;
	const struct tensor *a = n->in[0], *b = n->in[1], *y = n->out[0];

	return { m->alloc<factor>(rounded_size<P>(a, tensor_count(a))),
		 m->alloc<factor>(rounded_size<P>(b, tensor_count(b))),
		 pass == PASS_BACKWARD ? m->alloc<factor>(rounded_size<P>(y, tensor_count(y)))
				       : NULL };
}

template <typename P>
static matrix<typename P::factor> operand(const struct call *c, const struct tensor *t,
					  input_view<P> x, typename P::factor *copy)
{
	const int64_t width = tensor_dim(t, -1);

	return rounded<P>(c, x, tensor_count(t) / width, width, matmul_pitch(t), copy);
}

/* `count` products, from number `first` of batch dimension d on. */
template <typename P>
static void multiply_batch(const struct call *c, const struct matmul_product &p,
			   const typename P::factor *left, const typename P::factor *right,
			   output_view<P> out, bool add, const int64_t (&at)[2], int d,
			   int64_t count)
{
	const auto offset = [&](const struct matmul_matrix &x) {
		return at[0] * x.stride[0] + at[1] * x.stride[1];
	};

	gemm<typename P::factor>(c, p.transpose_left, p.transpose_right, p.m, p.n, p.k, 1,
				 { left + offset(p.left), p.left.pitch, p.left.stride[d] },
				 { right + offset(p.right), p.right.pitch, p.right.stride[d] }, add,
				 out + offset(p.out), p.out.pitch, p.out.stride[d], count);
}

/* One launch along a dimension in which the results differ, and one for each index of the other. */
template <typename P>
static void multiply(const struct call *c, const struct matmul_product &p,
		     matrix<typename P::factor> left, matrix<typename P::factor> right,
		     gradient_view<P> out)
{
	const int d = p.out.stride[1] || p.batch[0] == 1 ? 1 : 0;
	const bool summed = !p.out.stride[d] && p.batch[d] > 1;
	const int64_t count = summed ? 1 : p.batch[d], steps = summed ? p.batch[d] : 1;

	for (int64_t i = 0; i < p.batch[1 - d]; i++)
		for (int64_t j = 0; j < steps; j++) {
			const bool first = (i == 0 || p.out.stride[1 - d]) && j == 0;
			const int64_t at[2] = { d ? i : j, d ? j : i };

			multiply_batch<P>(c, p, left.at, right.at, out.to, out.add || !first, at, d,
					  count);
		}
}

template <typename P> static void forward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const operands<P> r = alloc_scratch<P>(&m, c->node, PASS_FORWARD);
	const auto a = operand<P>(c, c->node->in[0], input<P>(c, 0), r.a);
	const auto b = operand<P>(c, c->node->in[1], input<P>(c, 1), r.b);
	const struct matmul_sizes s = matmul_sizes_of(c->node, a.pitch, b.pitch);

	multiply<P>(c, matmul_forward(&s), a, b, { output<P>(c, 0), false });
}

template <typename P> static void backward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const operands<P> r = alloc_scratch<P>(&m, c->node, PASS_BACKWARD);
	const struct node *n = c->node;
	const auto dy = operand<P>(c, n->out[0], output_gradient<P>(c, 0), r.dy);

	if (c->din[0]) {
		const auto b = operand<P>(c, n->in[1], input<P>(c, 1), r.b);
		const struct matmul_sizes s = matmul_sizes_of(n, matmul_pitch(n->in[0]), b.pitch);

		multiply<P>(c, matmul_backward_a(&s), s.transpose_a ? b : dy,
			    s.transpose_a ? dy : b, input_gradient<P>(c, 0));
	}
	if (c->din[1]) {
		const auto a = operand<P>(c, n->in[0], input<P>(c, 0), r.a);
		const struct matmul_sizes s = matmul_sizes_of(n, a.pitch, matmul_pitch(n->in[1]));

		multiply<P>(c, matmul_backward_b(&s), s.transpose_b ? dy : a,
			    s.transpose_b ? a : dy, input_gradient<P>(c, 1));
	}
}

KERNELS(matmul, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_scratch<P>>)
