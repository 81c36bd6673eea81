package api

// Nearest returns which of names was probably meant by typed: the one that is the
// fewest single-letter changes away, if that is at most a third of its letters
// and at least one; "" if none is near. Of equals the first wins.
func Nearest(typed string, names []string) string {
	best, bestDistance := "", -1
	for _, name := range names {
		d := distance(typed, name)
		if d > max(1, len(name)/3) {
			continue
		}
		if bestDistance < 0 || d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
