// Package size reads and writes numbers of bytes as people type them.
//
//	64M  64MiB   64 × 1024 × 1024
//	64MB         64 × 1000 × 1000
//	1.5G         1536 × 1024 × 1024
//	512  512B    512
//
// K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB are
// powers of 1000.
package size

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Syntax is what Parse takes, in words fit for a flag's help.
const Syntax = "bytes, or a number with K, M, G, T (or KiB, MiB, GiB, TiB: powers of 1024; kB, MB, GB, TB: powers of 1000)"

// maxLength bounds the text that Parse looks at, so that a huge one is refused
// before it is multiplied.
const maxLength = 64

// prefixes are the letters before B or iB; the n-th stands for the n-th power.
const prefixes = "KMGT"

// Parse returns the number of bytes that s means. The number may have decimals
// if it comes to a whole number of bytes. The letter K, M, G or T may be upper
// or lower case; the B may not be lower case, which some read as bits.
//
// The result is between 0 and the largest int64. Every error names s, what is
// wrong with it, and what would be right.
func Parse(s string) (int64, error) {
	if s == "" {
		return 0, fmt.Errorf("size %q: empty; type %s", s, Syntax)
	}
	if len(s) > maxLength {
		return 0, fmt.Errorf("size %q…: %d characters long; type %s", s[:maxLength], len(s), Syntax)
	}
	if strings.ContainsAny(s, " \t\r\n") {
		squeezed := strings.Join(strings.Fields(s), "")
		if _, err := Parse(squeezed); err == nil {
			return 0, fmt.Errorf("size %q: contains a space; did you mean %s?", s, squeezed)
		}
		return 0, fmt.Errorf("size %q: contains a space; type %s", s, Syntax)
	}
	if s[0] == '-' {
		return 0, fmt.Errorf("size %q: negative; a size is 0 or more bytes", s)
	}
	end := len(s)
	for i, c := range s {
		if (c < '0' || c > '9') && c != '.' {
			end = i
			break
		}
	}
	number, unit := s[:end], s[end:]
	whole, fraction, dotted := strings.Cut(number, ".")
	if whole == "" || strings.Contains(fraction, ".") || dotted && fraction == "" {
		return 0, fmt.Errorf("size %q: not a number with a unit; type %s", s, Syntax)
	}
	scale, err := unitBytes(unit)
	if err != nil {
		return 0, fmt.Errorf("size %q: %w", s, err)
	}

	digits, ok := new(big.Int).SetString(whole+fraction, 10)
	if !ok {
		return 0, fmt.Errorf("size %q: not a number with a unit; type %s", s, Syntax)
	}
	ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil)
	n, rest := new(big.Int).QuoRem(digits.Mul(digits, big.NewInt(scale)), ten, new(big.Int))
	if rest.Sign() != 0 {
		return 0, fmt.Errorf("size %q: not a whole number of bytes", s)
	}
	if !n.IsInt64() {
		return 0, fmt.Errorf("size %q: too large; the most is %d bytes", s, int64(math.MaxInt64))
	}
	return n.Int64(), nil
}

// unitBytes returns how many bytes one of unit is.
func unitBytes(unit string) (int64, error) {
	if unit == "" || unit == "B" {
		return 1, nil
	}
	power := strings.Index(prefixes, strings.ToUpper(unit[:1])) + 1
	if power == 0 {
		return 0, fmt.Errorf("unknown unit %q; type %s", unit, Syntax)
	}
	base := int64(1024)
	switch unit[1:] {
	case "", "iB":
	case "B":
		base = 1000
	case "b", "ib":
		return 0, fmt.Errorf("unknown unit %q; did you mean %s?", unit, strings.TrimSuffix(unit, "b")+"B")
	default:
		return 0, fmt.Errorf("unknown unit %q; type %s", unit, Syntax)
	}
	n := int64(1)
	for range power {
		n *= base
	}
	return n, nil
}

// Format writes n exactly: in the largest of TiB, GiB, MiB and KiB that divides
// it, else in bytes. Format(64<<20) is "64MiB", Format(1500) is "1500B". Parse
// reads it back as n; a negative n, which is nobody's size, gets a sign that
// Parse refuses.
func Format(n int64) string {
	if n == 0 {
		return "0B"
	}
	for power := len(prefixes); power > 0; power-- {
		unit := int64(1) << (10 * power)
		if n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + prefixes[power-1:power] + "iB"
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
