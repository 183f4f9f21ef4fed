#include "models/audit/audit.h"

#include <stdlib.h>
#include <string.h>

enum status audit_add(struct audit_report *r, const char *audit, const char *subject, bool passed,
		      const char *detail, struct error *err)
{
	struct audit_finding *list = r->list;

	if (r->n == r->capacity) {
		list = realloc(list, (size_t)(2 * r->capacity + 32) * sizeof(*list));
		if (!list)
			return fail_memory(err, "audit", (size_t)r->capacity * sizeof(*list));
		r->list = list;
		r->capacity = 2 * r->capacity + 32;
	}
	list[r->n] = (struct audit_finding){ .audit = audit, .passed = passed };
	snprintf(list[r->n].subject, sizeof(list[r->n].subject), "%s", subject);
	snprintf(list[r->n].detail, sizeof(list[r->n].detail), "%s", detail);
	r->n++;
	return OK;
}

bool audit_passed(const struct audit_report *r)
{
	for (int i = 0; i < r->n; i++)
		if (!r->list[i].passed &&
		    !(r->declared_leak && strcmp(r->list[i].audit, "causality") == 0))
			return false;
	return true;
}

void audit_print(const struct audit_report *r, FILE *file)
{
	for (int i = 0; i < r->n; i++)
		if (!r->list[i].passed || r->list[i].detail[0])
			fprintf(file, "%-9s %-6s %s%s%s\n", r->list[i].audit,
				r->list[i].passed ? "ok" : "FAILED", r->list[i].subject,
				r->list[i].detail[0] ? ": " : "", r->list[i].detail);
	fprintf(file, "%d audits, %s%s%s\n", r->n, audit_passed(r) ? "passed" : "FAILED",
		r->partial ? "; others are switched off" : "",
		r->declared_leak ? "; this arm is declared to see the future" : "");
}

void audit_free(struct audit_report *r)
{
	free(r->list);
	*r = (struct audit_report){ 0 };
}
