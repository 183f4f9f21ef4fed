/* tasks - the descriptor at the end of every file of this directory. */
#ifndef DATA_TASKS_TASKS_H
#define DATA_TASKS_TASKS_H

#include "data/source.h"

extern const struct task task_copy;
extern const struct task task_fuzzy;
extern const struct task task_language;
extern const struct task task_memorization;
extern const struct task task_mqar;
extern const struct task task_noisy;
extern const struct task task_recall;
extern const struct task task_selective;
extern const struct task task_text;

#endif
