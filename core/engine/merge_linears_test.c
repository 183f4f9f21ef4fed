/* Which nodes become one, what is left alone, and in which order the rest follows. */
#include <string.h>

#include "core/ops/op_case.h"
#include "core/util/test.h"

struct fixture {
	struct params *params;
	struct graph *g;
	struct tensor *x;
};

static struct fixture start(bool fusable)
{
	struct fixture f;
	struct error err;

	must(params_create(&f.params, F64, &err), &err);
	must(graph_create(&f.g, f.params, true, &err), &err);
	if (fusable)
		graph_merge_linears(f.g);
	f.x = op_gelu(f.g, "x", case_param(f.g, "p", 2, 3, 8));
	return f;
}

/* Finishes the graph; how many nodes of this op it has. */
static int count(struct fixture *f, enum op_id id)
{
	struct error err;
	int n = 0;

	must(graph_finish(f->g, &err), &err);
	for (int i = 0; i < f->g->n_nodes; i++) {
		assert_int_equal(f->g->nodes[i]->index, i);
		n += f->g->nodes[i]->id == id;
	}
	return n;
}

static void end(struct fixture *f)
{
	graph_destroy(f->g);
	params_destroy(f->params);
}

/* Rope reads slices that are split into heads. */
static struct tensor *map(struct graph *g, const char *name, struct tensor *x, int64_t width)
{
	char weight[16];
	struct tensor *y;

	snprintf(weight, sizeof(weight), "%s.w", name);
	y = op_linear(g, name, x, case_param(g, weight, 8, width), NULL);
	snprintf(weight, sizeof(weight), "%s.r", name);
	graph_output(
		g, weight,
		op_rope(g, weight, graph_reshape(g, y, 4, SHAPE(2, 3, width / 2, 2)), 10000, 2));
	return y;
}

static void test_maps_of_one_tensor(void **state)
{
	struct fixture f = start(true);
	struct tensor *a = map(f.g, "a", f.x, 6), *b = map(f.g, "b", f.x, 4);

	(void)state;
	assert_int_equal(count(&f, OP_linear), 1);
	assert_ptr_equal(a->base, b->base);
	assert_int_equal(tensor_dim(a->base, -1), 16);
	assert_int_equal(a->offset, 0);
	assert_int_equal(b->offset, 6);
	assert_int_equal(b->row, 4);
	assert_int_equal(b->pitch, 16); /* with six columns of zeros */
	assert_null(b->producer);
	assert_string_equal(a->base->name, "a.joined");
	end(&f);
}

/* The one is averaged, the other is added by a norm. */
static void test_branch_of_a_norm(void **state)
{
	struct fixture f = start(true);
	struct tensor *few = op_linear(f.g, "few", f.x, case_param(f.g, "v", 8, 3), NULL);
	struct tensor *branch = op_linear(f.g, "branch", f.x, case_param(f.g, "w", 8, 8), NULL);
	struct tensor *norm = case_param(f.g, "norm.w", 8), *sum;

	(void)state;
	graph_output(f.g, "mean", op_running_mean(f.g, "mean", few));
	graph_output(f.g, "y", op_norm(f.g, "y", NORM_RMS, 1e-5, f.x, branch, norm, NULL, &sum));
	assert_int_equal(count(&f, OP_linear), 1);
	assert_ptr_equal(branch->base, few->base);
	end(&f);
}

static void test_only_if_told(void **state)
{
	struct fixture f = start(false);

	(void)state;
	map(f.g, "a", f.x, 6);
	map(f.g, "b", f.x, 4);
	assert_int_equal(count(&f, OP_linear), 2);
	end(&f);
}

/* The second weight is made after a reader of the first map. */
static void test_weights_that_are_made(void **state)
{
	struct fixture f = start(true);
	struct tensor *w = case_param(f.g, "w", 8, 4), *v = case_param(f.g, "v", 4, 6), *made;

	(void)state;
	map(f.g, "a", f.x, 6);
	made = op_linear(f.g, "made", w, v, NULL);
	graph_output(f.g, "r",
		     op_rope(f.g, "r",
			     graph_reshape(f.g, op_linear(f.g, "b", f.x, made, NULL), 4,
					   SHAPE(2, 3, 3, 2)),
			     10000, 2));
	assert_int_equal(count(&f, OP_linear), 2); /* of which one makes a weight */
	end(&f);
}

/* Products that make weights of one matrix are merged, too, when a concat reads their slices. */
static void test_makers_of_weights(void **state)
{
	struct fixture f = start(true);
	struct tensor *u = case_param(f.g, "u", 8, 8);

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct tensor *w = op_linear(f.g, i ? "w1" : "w0", u,
					     case_param(f.g, i ? "v1" : "v0", 8, 4), NULL);
		struct tensor *y = op_linear(f.g, i ? "y1" : "y0", f.x, w, NULL);

		graph_output(f.g, i ? "r1" : "r0",
			     op_rope(f.g, i ? "r1" : "r0",
				     graph_reshape(f.g, y, 4, SHAPE(2, 3, 2, 2)), 10000, 2));
	}
	assert_int_equal(count(&f, OP_linear), 2);
	assert_int_equal(count(&f, OP_concat), 2);
	end(&f);
}

static void test_what_is_left_alone(void **state)
{
	struct fixture f = start(true);
	struct graph *g = f.g;
	struct tensor *w = case_param(g, "w", 8, 4), *v = case_param(g, "v", 3, 8);

	(void)state;
	map(g, "a", f.x, 6);
	map(g, "other", op_gelu(g, "y", f.x), 4);     /* reads another tensor */
	graph_output(g, "seen", map(g, "b", f.x, 8)); /* the host reads it */
	graph_output(g, "gelu",
		     op_gelu(g, "gelu", op_linear(g, "c", f.x, w, NULL))); /* takes no slices */
	graph_output(g, "turned", op_linear_transposed(g, "turned", f.x, v));
	assert_int_equal(count(&f, OP_linear), 5);
	end(&f);
}

/* A weight that depends on the data could depend on a sibling. */
static void test_weights_of_the_data(void **state)
{
	struct fixture f = start(true);
	struct tensor *w = op_gelu(f.g, "w", case_input(f.g, "data", F64, 8, 4));

	(void)state;
	map(f.g, "a", f.x, 6);
	graph_output(
		f.g, "r",
		op_rope(f.g, "r",
			graph_reshape(f.g, op_linear(f.g, "b", f.x, w, NULL), 4, SHAPE(2, 3, 2, 2)),
			10000, 2));
	assert_int_equal(count(&f, OP_linear), 2);
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_maps_of_one_tensor),
		cmocka_unit_test(test_branch_of_a_norm),
		cmocka_unit_test(test_only_if_told),
		cmocka_unit_test(test_weights_that_are_made),
		cmocka_unit_test(test_makers_of_weights),
		cmocka_unit_test(test_what_is_left_alone),
		cmocka_unit_test(test_weights_of_the_data),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
