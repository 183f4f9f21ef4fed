/*
 * run_workload - what core/train trains: the model's graph, the rows of the data, and what a run
 * records of its model.
 */
#ifndef TOOLS_KABLATE_RUN_WORKLOAD_H
#define TOOLS_KABLATE_RUN_WORKLOAD_H

#include "tools/kablate/run_setup.h"

/* The setup must outlive the workload. */
struct workload run_workload(struct run_setup *setup);

/* With the options of the setup. */
struct train_run run_of(struct run_setup *setup);

#endif
