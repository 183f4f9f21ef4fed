/*
 * shards - the parameters of a run, divided over its ranks (ZeRO, stage 2).
 *
 * Every rank has all weights and computes gradients of its own micro-batches.  The parameters
 * are split into shards, and each shard belongs to one rank, which sums its gradients
 * (reduce-scatter), keeps its optimizer state, updates it and sends it to the others (all-gather).
 * Shards do not depend on the number of ranks.  Gradients are summed in the order of micro-batches,
 * and squares in the order of shards.  So any number of ranks, one included, gives the same bits.
 *
 * An update is made of rounds.  In each round, every rank runs one micro-batch at most.  The
 * gradient of a shard is sent to its owner as soon as the backward pass has made it; transfers of a
 * round may go on during the forward pass of the next one.
 */
#ifndef CORE_TRAIN_SHARDS_H
#define CORE_TRAIN_SHARDS_H

#include "core/engine/program.h"
#include "core/optim/optim.h"
#include "core/ranks/ranks.h"

struct shards;

/* The parameters must be named and allocated with gradients; both must outlive the shards. */
enum status shards_create(struct shards **s, struct ranks *ranks, struct params *whole,
			  const struct optim_options *optim, struct error *err) MUST_CHECK;
void shards_destroy(struct shards *s);

/* The shards of this rank: what its optimizer updates. */
struct params *shards_own(struct shards *s);
struct ranks *shards_ranks(const struct shards *s);

/* The optimizer of the own shards.  From now on it clips by the norm of all shards. */
enum status shards_set_optimizer(struct shards *s, struct optimizer *optimizer,
				 struct error *err) MUST_CHECK;

/* The program that makes the gradients. */
void shards_watch(struct shards *s, struct program *p);

/*
 * Begin a round in which ranks 0 to contributors - 1 make a gradient, then run the program on those
 * ranks, then end the round on all.  `first`: sums begin with this round.
 */
enum status shards_begin_round(struct shards *s, int contributors, bool first,
			       struct error *err) MUST_CHECK;
enum status shards_end_round(struct shards *s, struct error *err) MUST_CHECK;

/* After the last round: completes the sums of the own shards. */
enum status shards_sum(struct shards *s, struct error *err) MUST_CHECK;

/* After an update: every rank gets the new weights.  FAIL also if the norm was not computed. */
enum status shards_all_gather(struct shards *s, struct error *err) MUST_CHECK;

/* Every rank gets all weights of rank 0. */
enum status shards_broadcast(struct shards *s, struct error *err) MUST_CHECK;

/* ------------------------------------------------------- whole state on rank 0 */

/* The state of all ranks, with data NULL: the functions below read and write it. */
const struct optim_tensor *shards_state(const struct shards *s, int *count);

/*
 * Rank 0 reads and writes state that lies on other ranks, which serve until rank 0 says that it is
 * done.  Bytes and offsets are those of the whole tensor.
 */
enum status shards_read(struct shards *s, int tensor, size_t offset, size_t bytes, void *host,
			struct error *err) MUST_CHECK;
enum status shards_write(struct shards *s, int tensor, const void *host,
			 struct error *err) MUST_CHECK;
/* Copies the summed gradient of this update into the whole parameters of rank 0. */
enum status shards_fetch_gradient(struct shards *s, struct error *err) MUST_CHECK;
enum status shards_done(struct shards *s, struct error *err) MUST_CHECK;
enum status shards_serve(struct shards *s, struct error *err) MUST_CHECK;

#endif
