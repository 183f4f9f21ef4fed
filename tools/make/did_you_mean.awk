# The words of standard input that are nearest to `wanted`, by the number of letters that differ.
function least(a, b) { return a < b ? a : b }

function letter(text, i) { return substr(text, i, 1) }

# The edit distance of Damerau: letters inserted, removed, replaced, or swapped with the next one.
function distance(a, b,    i, j, d) {
	for (i = 0; i <= length(a); i++)
		d[i, 0] = i
	for (j = 0; j <= length(b); j++)
		d[0, j] = j
	for (i = 1; i <= length(a); i++)
		for (j = 1; j <= length(b); j++) {
			d[i, j] = least(least(d[i - 1, j], d[i, j - 1]) + 1,
					d[i - 1, j - 1] + (letter(a, i) != letter(b, j)))
			if (i > 1 && j > 1 && letter(a, i) == letter(b, j - 1) && letter(a, i - 1) == letter(b, j))
				d[i, j] = least(d[i, j], d[i - 2, j - 2] + 1)
		}
	return d[length(a), length(b)]
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
