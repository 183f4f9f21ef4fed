#include "tools/kablate/run_audit.h"

#include "data/source_audit.h"
#include "tools/kablate/run_workload.h"
#include "tools/kablate/training_audit.h"

struct data_audit {
	struct audit_report *report;
	enum status status;
	struct error *err;
};

static void add_data_finding(void *context, const struct source_finding *f)
{
	struct data_audit *d = context;

	if (d->status == OK)
		d->status = audit_add(d->report, "data", f->subject, f->passed, f->detail, d->err);
}

/* As the training asks for them. */
static void train_row(void *context, uint64_t seed, uint64_t iteration, uint64_t row,
		      struct row *out)
{
	struct run_setup setup = *(const struct run_setup *)context;

	setup.source.seed = seed;
	run_workload(&setup).train_row(&setup, iteration, row, out->tokens, out->targets);
}

static void valid_row(void *context, uint64_t index, struct row *out)
{
	struct workload_row row = { out->tokens, out->targets, out->component, out->floor };
	struct run_setup *setup = context;

	run_workload(setup).valid_row(setup, index, &row);
}

static enum status audit_data(const struct run_setup *setup, struct audit_report *report,
			      struct error *err)
{
	struct run_setup own = *setup;
	const struct source_rows rows = { &own, train_row, valid_row };
	struct data_audit d = { report, OK, err };

	if (!setup->audit.data || source_is_blank(&setup->source))
		return OK;
	if (source_audit(&setup->source, &rows, setup->train.iterations,
			 setup->train.batch * setup->train.accumulate, add_data_finding, &d,
			 err) != OK)
		return FAIL;
	return d.status;
}

enum status audit_run(const struct run_setup *setup, struct audit_report *report, struct error *err)
{
	const struct model_task task = run_setup_task(setup);

	if (audit_model(setup->config, &task, &setup->backend, &setup->audit, report, err) != OK ||
	    (setup->audit.training && training_audit(setup, report, err) != OK) ||
	    setup->backend.check(&setup->backend, err) != OK)
		return FAIL;
	return audit_data(setup, report, err);
}
