/*
 * update_audit - was an update the one that is configured?
 *
 * Up to 64 elements of each tensor, spread evenly and always the same, are recomputed in double:
 * the new moments from the old ones and the gradient, the new weight from the old one and the
 * moments. The formula is read from the configuration by symbol names, and shares no code with
 * core/optim or the training loop: learning rate, decay, bias corrections, clipping, and the ages
 * of moments follow from the number of the update alone.  If its micro-batches were run alone
 * before, their sum must be the gradient.  Of pruned weights all are looked at: they are 0, and as
 * many as the schedule says.
 *
 * With shards, each rank looks at its own pieces, and all get the first finding.
 */
#ifndef CORE_TRAIN_UPDATE_AUDIT_H
#define CORE_TRAIN_UPDATE_AUDIT_H

#include "core/optim/optim.h"
#include "core/train/shards.h"
#include "core/train/workload.h"
#include "core/util/config.h"

struct update_audit;

/* What is pointed to must outlive the audit.  `shards` may be NULL. */
enum status update_audit_create(struct update_audit **a, const struct config *config,
				const struct params *params, const struct optimizer *optimizer,
				struct shards *shards, struct error *err) MUST_CHECK;
void update_audit_destroy(struct update_audit *a);

/* The next updates are of a run with this configuration: replicas may differ in learning rates. */
enum status update_audit_follow(struct update_audit *a, const struct config *config,
				struct error *err) MUST_CHECK;

/*
 * May be called before an update is audited: runs each of its micro-batches alone.  That leaves
 * gradients behind, and changes nothing else.
 */
enum status update_audit_micros(struct update_audit *a, struct token_program *training,
				const struct workload *workload, uint64_t seed, int64_t iteration,
				struct error *err) MUST_CHECK;

/* To be called around one update: before its passes, between them and the optimizer, and after. */
void update_audit_before(struct update_audit *a);
enum status update_audit_gradient(struct update_audit *a, int64_t iteration,
				  struct error *err) MUST_CHECK;
/*
 * `norm` is the one that the optimizer reports.  *finding says what is wrong; it is empty when the
 * update is right.
 */
enum status update_audit_after(struct update_audit *a, int64_t iteration, double norm,
			       struct error *finding, struct error *err) MUST_CHECK;

/* Updates of a run, training rows that one takes, and validation rows (0: all there are), as
 * configured. */
int64_t update_audit_updates(const struct update_audit *a);
int64_t update_audit_rows(const struct update_audit *a);
int64_t update_audit_valid_rows(const struct update_audit *a);

/* A hash of the elements as they are now, on all ranks: a resumed run begins with the same. */
enum status update_audit_digest(struct update_audit *a, uint64_t *digest,
				struct error *err) MUST_CHECK;

#endif
