/* processors - how many processors this process may use. */
#ifndef CORE_UTIL_PROCESSORS_H
#define CORE_UTIL_PROCESSORS_H

/* Those that taskset, a container or Slurm left to it, which may be fewer than the machine has. */
int usable_processors(void);

#endif
