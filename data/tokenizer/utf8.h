/*
 * utf8 - text as symbols, for every byte string.
 *
 * A symbol is a Unicode code point or, where the bytes are not valid UTF-8 (RFC 3629: no overlong
 * form, no surrogate, nothing above U+10FFFF), a single raw byte.  Symbols and bytes map one to
 * one, so nothing is lost; a raw byte has no Unicode class.
 */
#ifndef DATA_TOKENIZER_UTF8_H
#define DATA_TOKENIZER_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_RAW 0x110000u /* the symbol of the raw byte b is UTF8_RAW + b */
#define UTF8_SYMBOLS (UTF8_RAW + 256u)

static inline uint32_t utf8_long(const uint8_t *s, size_t room, size_t *length)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	uint32_t c = s[0] & (0xffu >> (n + 1));

	*length = 1;
	if (s[0] < 0xc2 || s[0] > 0xf4 || room < n)
		return UTF8_RAW + s[0];
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return UTF8_RAW + s[0];
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < smallest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return UTF8_RAW + s[0];
	*length = n;
	return c;
}

/* The symbol at *p, which is before end; moves *p past it. */
static inline uint32_t utf8_next(const uint8_t **p, const uint8_t *end)
{
	uint32_t symbol = **p;
	size_t length = 1;

	if (symbol >= 0x80)
		symbol = utf8_long(*p, (size_t)(end - *p), &length);
	*p += length;
	return symbol;
}

/* The bytes of a symbol; returns how many. */
static inline size_t utf8_put(uint32_t symbol, uint8_t out[4])
{
	if (symbol >= UTF8_RAW || symbol < 0x80) {
		out[0] = (uint8_t)symbol;
		return 1;
	}
	if (symbol < 0x800) {
		out[0] = (uint8_t)(0xc0 | symbol >> 6);
		out[1] = (uint8_t)(0x80 | (symbol & 0x3f));
		return 2;
	}
	if (symbol < 0x10000) {
		out[0] = (uint8_t)(0xe0 | symbol >> 12);
		out[1] = (uint8_t)(0x80 | (symbol >> 6 & 0x3f));
		out[2] = (uint8_t)(0x80 | (symbol & 0x3f));
		return 3;
	}
	out[0] = (uint8_t)(0xf0 | symbol >> 18);
	out[1] = (uint8_t)(0x80 | (symbol >> 12 & 0x3f));
	out[2] = (uint8_t)(0x80 | (symbol >> 6 & 0x3f));
	out[3] = (uint8_t)(0x80 | (symbol & 0x3f));
	return 4;
}

#endif
