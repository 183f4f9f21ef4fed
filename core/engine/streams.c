/*
 * List scheduling of instructions on streams.
 *
 * Step 1 finds the dependencies: two instructions that use the same bytes, of which one writes.
 * Step 2 repeatedly takes the instruction that can start first.  It tracks, per stream, the last
 * step of every other stream that it has waited for, so that no redundant wait is emitted. Time:
 * O(n^2) for n instructions, once per program.
 */
#include "core/engine/streams.h"

#include <stdlib.h>

/* The delay until another stream sees the end of an instruction, in short kernels. */
#define LATENCY 0.25

/* The state of an instruction. */
struct node {
	int length;		/* duration */
	int height;		/* duration of the longest chain that starts with it */
	int missing;		/* predecessors that are not scheduled yet */
	int after[MAX_STREAMS]; /* by stream: the last step that must precede it; -1: none */
	double end;
};

struct schedule {
	int n, streams;
	bool *depends; /* [n,n]: [a,b] is true if instruction a must follow b */
	struct node *items;
	struct stream_step *steps;
	int (*ended)[MAX_STREAMS]; /* by step and stream: the last step that has ended when this one
				      ends */
	int known[MAX_STREAMS][MAX_STREAMS]; /* by stream: the same, for its last step */
	double free[MAX_STREAMS];	     /* by stream: the end time of its last step */
};

/* ---------------------------------------------------------------- dependencies */

static bool conflict(const struct stream_use *a, const struct stream_use *b)
{
	return (a->writes || b->writes) && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static void find_dependencies(struct schedule *p, const struct stream_use *uses, int n_uses)
{
	for (int i = 0; i < n_uses; i++)
		for (int j = 0; uses[j].user < uses[i].user; j++)
			if (conflict(&uses[i], &uses[j]))
				p->depends[(size_t)uses[i].user * (size_t)p->n +
					   (size_t)uses[j].user] = true;
}

static bool depends_on(const struct schedule *p, int later, int earlier)
{
	return p->depends[(size_t)later * (size_t)p->n + (size_t)earlier];
}

static void init_nodes(struct schedule *p, const int *lengths)
{
	for (int i = p->n - 1; i >= 0; i--) {
		struct node *node = &p->items[i];

		*node = (struct node){ .length = lengths[i], .height = lengths[i] };
		for (int stream = 0; stream < MAX_STREAMS; stream++)
			node->after[stream] = -1;
		for (int earlier = 0; earlier < i; earlier++)
			node->missing += depends_on(p, i, earlier);
		for (int later = i + 1; later < p->n; later++)
			if (depends_on(p, later, i) &&
			    p->items[later].height + node->length > node->height)
				node->height = p->items[later].height + node->length;
	}
}

/* ---------------------------------------------------------------------- scheduling */

/* The earliest start time of the instruction on this stream. */
static double start_time(const struct schedule *p, const struct node *node, int stream)
{
	double begin = p->free[stream];

	for (int other = 0; other < p->streams; other++) {
		double ready;

		if (other == stream || node->after[other] <= p->known[stream][other])
			continue;
		ready = p->items[p->steps[node->after[other]].instr].end + LATENCY;
		begin = ready > begin ? ready : begin;
	}
	return begin;
}

/*
 * The stream on which it can start first.  Of several, the one that was busy last: the others stay
 * free longer.
 */
static int best_stream(const struct schedule *p, const struct node *node)
{
	int best = 0;

	for (int stream = 1; stream < p->streams; stream++) {
		const double here = start_time(p, node, stream), there = start_time(p, node, best);

		if (here < there || (here == there && p->free[stream] > p->free[best]))
			best = stream;
	}
	return best;
}

/* The instruction that can start first.  Of several, the one that begins the longest chain. */
static struct stream_step best_step(const struct schedule *p, const bool *done)
{
	struct stream_step best = { .instr = -1 };
	double first = 0;

	for (int i = 0; i < p->n; i++) {
		const struct node *node = &p->items[i];
		double begin;
		int stream;

		if (done[i] || node->missing > 0)
			continue;
		stream = best_stream(p, node);
		begin = start_time(p, node, stream);
		if (best.instr >= 0 &&
		    (begin > first ||
		     (begin == first && node->height <= p->items[best.instr].height)))
			continue;
		best = (struct stream_step){ .instr = i, .stream = stream };
		first = begin;
	}
	return best;
}

/* After a wait for `step`, the stream has also waited for all that ended before it. */
static void update_known(struct schedule *p, int stream, int step)
{
	for (int k = 0; k < p->streams; k++)
		if (p->ended[step][k] > p->known[stream][k])
			p->known[stream][k] = p->ended[step][k];
}

/* Adds the waits of a step.  The latest comes first, because it may imply the others. */
static void add_waits(struct schedule *p, struct stream_step *step)
{
	const struct node *node = &p->items[step->instr];

	for (;;) {
		int latest = -1;

		for (int other = 0; other < p->streams; other++)
			if (other != step->stream &&
			    node->after[other] > p->known[step->stream][other] &&
			    node->after[other] > latest)
				latest = node->after[other];
		if (latest < 0)
			return;
		step->waits[step->n_waits++] = p->steps[latest].instr;
		p->steps[latest].records_event = true;
		update_known(p, step->stream, latest);
	}
}

static void commit_step(struct schedule *p, int index, struct stream_step step)
{
	struct node *node = &p->items[step.instr];

	node->end = start_time(p, node, step.stream) + node->length;
	p->free[step.stream] = node->end;
	add_waits(p, &step);
	p->known[step.stream][step.stream] = index;
	for (int stream = 0; stream < MAX_STREAMS; stream++)
		p->ended[index][stream] = p->known[step.stream][stream];
	p->steps[index] = step;
	for (int later = step.instr + 1; later < p->n; later++)
		if (depends_on(p, later, step.instr)) {
			p->items[later].missing--;
			p->items[later].after[step.stream] = index;
		}
}

static void schedule_all(struct schedule *p, bool *done)
{
	for (int stream = 0; stream < MAX_STREAMS; stream++)
		for (int other = 0; other < MAX_STREAMS; other++)
			p->known[stream][other] = -1;
	for (int index = 0; index < p->n; index++) {
		const struct stream_step step = best_step(p, done);

		commit_step(p, index, step);
		done[step.instr] = true;
	}
}

static void find_ends(struct schedule *p, int ends[MAX_STREAMS])
{
	for (int stream = 0; stream < MAX_STREAMS; stream++) {
		const int last = p->known[stream][stream];

		ends[stream] = -1;
		if (stream == 0 || last <= p->known[0][stream])
			continue;
		ends[stream] = p->steps[last].instr;
		p->steps[last].records_event = true;
	}
}

enum status streams_assign(struct stream_step *steps, int n, int streams, const int *lengths,
			   const struct stream_use *uses, int n_uses, int ends[MAX_STREAMS],
			   struct error *err)
{
	const size_t entries = (size_t)n + 1;
	struct schedule p = {
		.n = n,
		.streams = streams < MAX_STREAMS ? streams : MAX_STREAMS,
		.depends = calloc(entries * entries, sizeof(bool)),
		.items = malloc(entries * sizeof(*p.items)),
		.steps = steps,
		.ended = malloc(entries * sizeof(*p.ended)),
	};
	bool *done = calloc(entries, sizeof(*done));
	enum status status = OK;

	if (p.depends && p.items && p.ended && done) {
		find_dependencies(&p, uses, n_uses);
		init_nodes(&p, lengths);
		schedule_all(&p, done);
		find_ends(&p, ends);
	} else {
		status = fail_memory(err, "streams", entries * entries);
	}
	free(p.depends);
	free(p.items);
	free(p.ended);
	free(done);
	return status;
}
