#include "core/engine/streams.h"

#include <stdlib.h>

/* So much later does another lane know of the end of an instruction: a part of a launch. */
#define LATENCY 0.25

/* What is known of an instruction. */
struct item {
	int length;	       /* how long it takes */
	int height;	       /* the length of the longest chain that begins with it */
	int missing;	       /* instructions before it that have no step yet */
	int after[LANES_MOST]; /* the last step of each lane that must come before it; -1: none */
	double end;
};

struct planning {
	int n, lanes;
	bool *ordered; /* [n,n]: instruction a of [a,b] comes after b */
	struct item *items;
	struct lane_step *steps;
	int (*ended)[LANES_MOST]; /* by step: the last step of each lane that has ended with it */
	int known[LANES_MOST][LANES_MOST]; /* by lane: the same of its last step */
	double free[LANES_MOST];	   /* by lane: when that has ended */
};

/* ---------------------------------------------------------------- what is known before */

static bool conflict(const struct lane_use *a, const struct lane_use *b)
{
	return (a->writes || b->writes) && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static void find_order(struct planning *p, const struct lane_use *uses, int n_uses)
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
		for (int lane = 0; lane < LANES_MOST; lane++)
			item->after[lane] = -1;
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
static double beginning(const struct planning *p, const struct item *item, int lane)
{
	double begin = p->free[lane];

	for (int other = 0; other < p->lanes; other++) {
		double ready;

		if (other == lane || item->after[other] <= p->known[lane][other])
			continue;
		ready = p->items[p->steps[item->after[other]].instr].end + LATENCY;
		begin = ready > begin ? ready : begin;
	}
	return begin;
}

/* Among equals the lane that has worked last: the others stay free for longer. */
static int best_lane(const struct planning *p, const struct item *item)
{
	int best = 0;

	for (int lane = 1; lane < p->lanes; lane++) {
		const double here = beginning(p, item, lane), there = beginning(p, item, best);

		if (here < there || (here == there && p->free[lane] > p->free[best]))
			best = lane;
	}
	return best;
}

/* What can begin first; of those, what begins the longest chain. */
static struct lane_step best_step(const struct planning *p, const bool *done)
{
	struct lane_step best = { .instr = -1 };
	double first = 0;

	for (int i = 0; i < p->n; i++) {
		const struct item *item = &p->items[i];
		double begin;
		int lane;

		if (done[i] || item->missing > 0)
			continue;
		lane = best_lane(p, item);
		begin = beginning(p, item, lane);
		if (best.instr >= 0 &&
		    (begin > first ||
		     (begin == first && item->height <= p->items[best.instr].height)))
			continue;
		best = (struct lane_step){ .instr = i, .lane = lane };
		first = begin;
	}
	return best;
}

/* A lane that has waited for a step knows what has ended with it. */
static void learn(struct planning *p, int lane, int step)
{
	for (int k = 0; k < p->lanes; k++)
		if (p->ended[step][k] > p->known[lane][k])
			p->known[lane][k] = p->ended[step][k];
}

/* The latest first: it may come after others. */
static void wait_for(struct planning *p, struct lane_step *step)
{
	const struct item *item = &p->items[step->instr];

	for (;;) {
		int latest = -1;

		for (int other = 0; other < p->lanes; other++)
			if (other != step->lane &&
			    item->after[other] > p->known[step->lane][other] &&
			    item->after[other] > latest)
				latest = item->after[other];
		if (latest < 0)
			return;
		step->waits[step->n_waits++] = p->steps[latest].instr;
		p->steps[latest].awaited = true;
		learn(p, step->lane, latest);
	}
}

static void take_step(struct planning *p, int number, struct lane_step step)
{
	struct item *item = &p->items[step.instr];

	item->end = beginning(p, item, step.lane) + item->length;
	p->free[step.lane] = item->end;
	wait_for(p, &step);
	p->known[step.lane][step.lane] = number;
	for (int lane = 0; lane < LANES_MOST; lane++)
		p->ended[number][lane] = p->known[step.lane][lane];
	p->steps[number] = step;
	for (int later = step.instr + 1; later < p->n; later++)
		if (comes_after(p, later, step.instr)) {
			p->items[later].missing--;
			p->items[later].after[step.lane] = number;
		}
}

static void take_steps(struct planning *p, bool *done)
{
	for (int lane = 0; lane < LANES_MOST; lane++)
		for (int other = 0; other < LANES_MOST; other++)
			p->known[lane][other] = -1;
	for (int number = 0; number < p->n; number++) {
		const struct lane_step step = best_step(p, done);

		take_step(p, number, step);
		done[step.instr] = true;
	}
}

static void find_ends(struct planning *p, int ends[LANES_MOST])
{
	for (int lane = 0; lane < LANES_MOST; lane++) {
		const int last = p->known[lane][lane];

		ends[lane] = -1;
		if (lane == 0 || last <= p->known[0][lane])
			continue;
		ends[lane] = p->steps[last].instr;
		p->steps[last].awaited = true;
	}
}

enum status lanes_assign(struct lane_step *steps, int n, int lanes, const int *lengths,
			 const struct lane_use *uses, int n_uses, int ends[LANES_MOST],
			 struct error *err)
{
	const size_t room = (size_t)n + 1;
	struct planning p = {
		.n = n,
		.lanes = lanes < LANES_MOST ? lanes : LANES_MOST,
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
		status = fail_memory(err, "lanes", room * room);
	}
	free(p.ordered);
	free(p.items);
	free(p.ended);
	free(done);
	return status;
}
