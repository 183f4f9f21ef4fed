/*
 * run_memory - what a run takes of the host's memory, with audits, evaluations and decoders.
 */
#ifndef TOOLS_KABLATE_RUN_MEMORY_H
#define TOOLS_KABLATE_RUN_MEMORY_H

#include "models/model_program.h"
#include "tools/kablate/decoder_uses.h"
#include "tools/kablate/run_setup.h"

/* The arena of one program; the copies that it wants are noted in the parameters. */
enum status run_memory_program(const struct run_setup *setup, struct params *params,
			       const struct model_use *use, size_t *bytes, int *losses,
			       struct error *err) MUST_CHECK;

/* In bytes. */
struct run_memory {
	double resident; /* at most at a time */
	double idle;	 /* taken as well, but not in use at that time */
};

/* Of a run of this description. */
enum status run_memory_measure(const struct run_setup *setup, const struct description *d,
			       struct run_memory *memory, struct error *err) MUST_CHECK;

/* Bytes of what follows the last update: decoders, one after the other. */
enum status run_memory_conclusion(const struct run_setup *setup, double *bytes,
				  struct error *err) MUST_CHECK;

/*
 * Notes, as a run does, what a decoder is going to take, with the weights and the libraries.  Call
 * this before the weights are drawn or loaded.  FAIL: there is no room.
 */
enum status run_memory_reserve_decoder(const struct run_setup *setup, const struct decoder_use *use,
				       struct error *err) MUST_CHECK;

#endif
