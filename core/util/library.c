#define _GNU_SOURCE
#include "core/util/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/build_id.h"

/* Where the loader looks for the program's libraries: to be freed; NULL: unknown. */
static Dl_serinfo *search_list(void)
{
	void *program = dlopen(NULL, RTLD_LAZY);
	Dl_serinfo size, *list;

	if (!program || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0)
		return NULL;
	list = malloc(size.dls_size);
	if (!list)
		return NULL;
	list->dls_size = size.dls_size;
	list->dls_cnt = size.dls_cnt;
	if (dlinfo(program, RTLD_DI_SERINFO, list) == 0)
		return list;
	free(list);
	return NULL;
}

/*
 * We look for the file ourselves: a missing library and one that lacks something are different
 * errors, and where a sanitizer wraps dlopen(), dlopen() does not know the program's run path.
 */
static bool find(const char *name, char path[PATH_MAX])
{
	Dl_serinfo *list = search_list();
	bool found = false;

	for (unsigned i = 0; list && !found && i < list->dls_cnt; i++) {
		const int length =
			snprintf(path, PATH_MAX, "%s/%s", list->dls_serpath[i].dls_name, name);

		found = length < PATH_MAX && access(path, R_OK) == 0;
	}
	free(list);
	return found;
}

bool library_is_built(const char *name)
{
	char path[PATH_MAX];

	return find(name, path);
}

enum status library_load(const char *name, int mode, const char *function, void **address,
			 struct error *err)
{
	char path[PATH_MAX];
	const char *id;
	void *library;

	if (!find(name, path))
		return fail(err, "%s is not built", name);
	library = dlopen(path, mode);
	if (!library)
		return fail(err, "%s", dlerror());
	id = dlsym(library, "build_id");
	if (!id || strcmp(id, build_id) != 0)
		return fail(err,
			    "%s was built from other sources than this program: remove it, "
			    "then make",
			    path);
	*address = dlsym(library, function);
	return *address ? OK : fail(err, "%s", dlerror());
}
