# The words of standard input that are nearest to `wanted`, by the number of letters that differ.
function least(a, b) { return a < b ? a : b }

# The edit distance of Levenshtein: letters inserted, removed or replaced.
function distance(a, b,    i, j, row, before, here) {
	for (j = 0; j <= length(b); j++)
		row[j] = j
	for (i = 1; i <= length(a); i++) {
		before = row[0]
		row[0] = i
		for (j = 1; j <= length(b); j++) {
			here = row[j]
			row[j] = least(least(row[j], row[j - 1]) + 1, before + (substr(a, i, 1) != substr(b, j, 1)))
			before = here
		}
	}
	return row[length(b)]
}

{
	d = distance(wanted, $0)
	if (index($0, wanted) == 1)
		d = least(d, 1) # it was begun
	if (!best || d < nearest) {
		nearest = d
		best = $0
	} else if (d == nearest)
		best = best "' or '" $0
}

END {
	if (best && nearest <= length(wanted) / 3 + 0.4)
		print best
}
