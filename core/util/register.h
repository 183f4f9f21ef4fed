/*
 * register - objects that are there because their file was linked.
 *
 * REGISTER() puts a pointer to a descriptor into a section of the program.  The
 * linker gathers these pointers, and REGISTERED() declares where they begin and
 * end: no file lists them.  If no such file was linked, both ends are NULL.
 */
#ifndef CORE_UTIL_REGISTER_H
#define CORE_UTIL_REGISTER_H

#define REGISTER(section_name, type, object)           \
	static const struct type *const object##_entry \
		__attribute__((used, aligned(sizeof(void *)), section(section_name))) = &object

#define REGISTERED(section_name, type)                                                  \
	extern const struct type *const __start_##section_name[] __attribute__((weak)); \
	extern const struct type *const __stop_##section_name[] __attribute__((weak))

#endif
