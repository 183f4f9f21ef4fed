#include "tools/kablate/audit_memo.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/replace.h"

#define AUDIT "oracle"
#define FIRST_LINE "findings of the oracle, version 1\n"
#define LAST_LINE "end\n"

static bool is_kept(const struct audit_finding *f)
{
	return strcmp(f->audit, AUDIT) == 0;
}

static enum status write_findings(FILE *file, const struct audit_report *r)
{
	int count = 0;

	fputs(FIRST_LINE, file);
	for (int i = 0; i < r->n; i++) {
		if (!is_kept(&r->list[i]))
			continue;
		if (!r->list[i].passed)
			return FAIL;
		fprintf(file, "%s\t%s\n", r->list[i].subject, r->list[i].detail);
		count++;
	}
	fputs(LAST_LINE, file);
	return count ? OK : FAIL;
}

/* Runs of other seeds may save the same findings at the same time: each writes a file of its own.
 */
enum status audit_memo_save(const char *path, const struct audit_report *r, struct error *err)
{
	struct replace file;
	char own[2500];

	snprintf(own, sizeof(own), "%s.%lld", path, (long long)getpid());
	if (replace_begin(&file, own, err) != OK)
		return FAIL;
	if (write_findings(file.stream, r) != OK) {
		replace_abort(&file);
		return OK;
	}
	if (replace_commit(&file, err) != OK)
		return FAIL;
	return rename(own, path) == 0 ? OK : fail_errno(err, "%s", path);
}

/* "subject TAB detail"; false: another line. */
static bool add_line(char *line, struct audit_report *r)
{
	char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
	struct error ignored;

	if (!tab || !end)
		return false;
	*tab = *end = '\0';
	return audit_add(r, AUDIT, line, true, tab + 1, &ignored) == OK;
}

static bool read_findings(FILE *file, struct audit_report *r)
{
	bool whole = false, first = true, good = true;
	size_t size = 0;
	char *line = NULL;

	while (good && !whole && getline(&line, &size, file) > 0) {
		if (first)
			good = strcmp(line, FIRST_LINE) == 0;
		else if (strcmp(line, LAST_LINE) == 0)
			whole = true;
		else
			good = add_line(line, r);
		first = false;
	}
	free(line);
	return whole;
}

bool audit_memo_load(const char *path, struct audit_report *r)
{
	const int before = r->n;
	FILE *file = fopen(path, "r");
	bool whole;

	if (!file)
		return false;
	whole = read_findings(file, r);
	fclose(file);
	if (!whole)
		r->n = before;
	return whole && r->n > before;
}
