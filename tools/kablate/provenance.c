#include "tools/kablate/provenance.h"

#include <assert.h>
#include <stdio.h>
#include <sys/utsname.h>

static void collect_symbol(void *context, const char *name, const char *value)
{
	struct provenance *p = context;

	assert(p->record.symbols < MAX_SYMBOLS);
	p->symbols[p->record.symbols++] = (struct run_symbol){ name, value };
}

static void describe_machine(struct provenance *p)
{
	char line[256], cpu[200] = "";
	struct utsname system;
	FILE *file = fopen("/proc/cpuinfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "model name : %199[^\n]", cpu) == 1 ||
		    (!cpu[0] && sscanf(line, "CPU part : %199[^\n]", cpu) == 1))
			break;
	if (file)
		fclose(file);
	uname(&system);
	snprintf(p->machine, sizeof(p->machine), "%s %s", system.machine, cpu);
}

void provenance_take(struct provenance *p, const struct run_setup *setup,
		     const struct run_names *names)
{
	p->record = (struct run_record){
		.experiment = names->experiment,
		.step = names->step,
		.identity = setup->identity,
		.baseline = names->baseline,
		.seed = (int64_t)setup->seed,
		.repeat = (int64_t)setup->repeat,
		.iterations = setup->train.iterations,
		.git_revision = names->git,
		.git_dirty = names->git_dirty,
		.compiler = build_info.compiler,
		.flags = build_info.flags,
		.blas = p->blas,
		.machine = p->machine,
		.precision = precision_names[setup->precision],
		.scale = names->scale,
		.threads = setup->backend.threads,
		.config = p->symbols,
	};
	config_visit_read(setup->config, collect_symbol, p);
	describe_machine(p);
	setup->backend.describe(&setup->backend, p->blas, sizeof(p->blas));
}
