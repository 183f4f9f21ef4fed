#include "core/engine/streams.h"

#include <stdlib.h>

/* So much later does another lane know of the end of an instruction: a part of a launch. */
#define LATENCY 0.25

/* What is known of an instruction. */
struct item {
	int length;		/* how long it takes */
	int height;		/* the length of the longest chain that begins with it */
	int missing;		/* instructions before it that have no step yet */
	int after[MAX_STREAMS]; /* the last step of each lane that must come before it; -1: none */
	double end;
};

struct planning {
	int n, streams;
	bool *ordered; /* [n,n]: instruction a of [a,b] comes after b */
	struct item *items;
	struct stream_step *steps;
	int (*ended)[MAX_STREAMS]; /* by step: the last step of each lane that has ended with it */
	int known[MAX_STREAMS][MAX_STREAMS]; /* by lane: the same of its last step */
	double free[MAX_STREAMS];	     /* by lane: when that has ended */
};

/* ---------------------------------------------------------------- what is known before */

static bool conflict(const struct stream_use *a, const struct stream_use *b)
{
	return (a->writes || b->writes) && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static void find_order(struct planning *p, const struct stream_use *uses, int n_uses)
{
	for (int i = 0; i < n_uses; i++)
		for (int j = 0; uses[j].user < uses[i].user; j++)
			if (conflict(&uses[i], &uses[j]))
				p->ordered[(size_t)uses[i].user * (size_t)p->n +
					   (size_t)uses[j].user] = true;
}

static bool comes_after(const struct planning *p, int later, int earlier)
{
	return p->ordered[(size_t)later * (size_t)p->n + (size_t)earlier];
}

static void describe_items(struct planning *p, const int *lengths)
{
	for (int i = p->n - 1; i >= 0; i--) {
		struct item *item = &p->items[i];

		*item = (struct item){ .length = lengths[i], .height = lengths[i] };
		for (int stream = 0; stream < MAX_STREAMS; stream++)
			item->after[stream] = -1;
		for (int earlier = 0; earlier < i; earlier++)
			item->missing += comes_after(p, i, earlier);
		for (int later = i + 1; later < p->n; later++)
			if (comes_after(p, later, i) &&
			    p->items[later].height + item->length > item->height)
				item->height = p->items[later].height + item->length;
	}
}

/* ---------------------------------------------------------------------- step by step */

/* When could the instruction begin in this lane? */
static double beginning(const struct planning *p, const struct item *item, int stream)
{
	double begin = p->free[stream];

	for (int other = 0; other < p->streams; other++) {
		double ready;

		if (other == stream || item->after[other] <= p->known[stream][other])
			continue;
		ready = p->items[p->steps[item->after[other]].instr].end + LATENCY;
		begin = ready > begin ? ready : begin;
	}
	return begin;
}

/* Among equals the lane that has worked last: the others stay free for longer. */
static int best_stream(const struct planning *p, const struct item *item)
{
	int best = 0;

	for (int stream = 1; stream < p->streams; stream++) {
		const double here = beginning(p, item, stream), there = beginning(p, item, best);

		if (here < there || (here == there && p->free[stream] > p->free[best]))
			best = stream;
	}
	return best;
}

/* What can begin first; of those, what begins the longest chain. */
static struct stream_step best_step(const struct planning *p, const bool *done)
{
	struct stream_step best = { .instr = -1 };
	double first = 0;

	for (int i = 0; i < p->n; i++) {
		const struct item *item = &p->items[i];
		double begin;
		int stream;

		if (done[i] || item->missing > 0)
			continue;
		stream = best_stream(p, item);
		begin = beginning(p, item, stream);
		if (best.instr >= 0 &&
		    (begin > first ||
		     (begin == first && item->height <= p->items[best.instr].height)))
			continue;
		best = (struct stream_step){ .instr = i, .stream = stream };
		first = begin;
	}
	return best;
}

/* A lane that has waited for a step knows what has ended with it. */
static void learn(struct planning *p, int stream, int step)
{
	for (int k = 0; k < p->streams; k++)
		if (p->ended[step][k] > p->known[stream][k])
			p->known[stream][k] = p->ended[step][k];
}

/* The latest first: it may come after others. */
static void wait_for(struct planning *p, struct stream_step *step)
{
	const struct item *item = &p->items[step->instr];

	for (;;) {
		int latest = -1;

		for (int other = 0; other < p->streams; other++)
			if (other != step->stream &&
			    item->after[other] > p->known[step->stream][other] &&
			    item->after[other] > latest)
				latest = item->after[other];
		if (latest < 0)
			return;
		step->waits[step->n_waits++] = p->steps[latest].instr;
		p->steps[latest].records_event = true;
		learn(p, step->stream, latest);
	}
}

static void take_step(struct planning *p, int number, struct stream_step step)
{
	struct item *item = &p->items[step.instr];

	item->end = beginning(p, item, step.stream) + item->length;
	p->free[step.stream] = item->end;
	wait_for(p, &step);
	p->known[step.stream][step.stream] = number;
	for (int stream = 0; stream < MAX_STREAMS; stream++)
		p->ended[number][stream] = p->known[step.stream][stream];
	p->steps[number] = step;
	for (int later = step.instr + 1; later < p->n; later++)
		if (comes_after(p, later, step.instr)) {
			p->items[later].missing--;
			p->items[later].after[step.stream] = number;
		}
}

static void take_steps(struct planning *p, bool *done)
{
	for (int stream = 0; stream < MAX_STREAMS; stream++)
		for (int other = 0; other < MAX_STREAMS; other++)
			p->known[stream][other] = -1;
	for (int number = 0; number < p->n; number++) {
		const struct stream_step step = best_step(p, done);

		take_step(p, number, step);
		done[step.instr] = true;
	}
}

static void find_ends(struct planning *p, int ends[MAX_STREAMS])
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
	const size_t room = (size_t)n + 1;
	struct planning p = {
		.n = n,
		.streams = streams < MAX_STREAMS ? streams : MAX_STREAMS,
		.ordered = calloc(room * room, sizeof(bool)),
		.items = malloc(room * sizeof(*p.items)),
		.steps = steps,
		.ended = malloc(room * sizeof(*p.ended)),
	};
	bool *done = calloc(room, sizeof(*done));
	enum status status = OK;

	if (p.ordered && p.items && p.ended && done) {
		find_order(&p, uses, n_uses);
		describe_items(&p, lengths);
		take_steps(&p, done);
		find_ends(&p, ends);
	} else {
		status = fail_memory(err, "streams", room * room);
	}
	free(p.ordered);
	free(p.items);
	free(p.ended);
	free(done);
	return status;
}
