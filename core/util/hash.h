/*
 * hash - SHA-256 (FIPS 180-4) for identities and data, FNV-1a for names.
 */
#ifndef CORE_UTIL_HASH_H
#define CORE_UTIL_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

#define SHA256_HEX_SIZE 65 /* 64 digits and the terminating zero */

typedef void sha256_compress(uint32_t state[8], const uint8_t *data, size_t blocks);

struct sha256 {
	sha256_compress *compress; /* by the processor's own instructions, where it has them */
	uint32_t state[8];
	uint64_t length;
	uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_init_plain(struct sha256 *s); /* for tests: without those instructions */
void sha256_add(struct sha256 *s, const void *data, size_t size);
void sha256_hex(struct sha256 *s, char hex[SHA256_HEX_SIZE]);

/* The hash of a whole file, read in pieces. */
enum status sha256_file(const char *path, char hex[SHA256_HEX_SIZE], struct error *err) MUST_CHECK;

/* 64-bit FNV-1a of a string. */
uint64_t hash_text(const char *text);

#endif
