package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
)

// outputFlag adds -o with the words it takes, the default first.
func outputFlag(cmd *cobra.Command, to *string, words ...string) {
	cmd.Flags().StringVarP(to, "output", "o", words[0], "`FORMAT`: "+strings.Join(words, ", "))
	err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag was added above
	}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if slices.Contains(words, *to) {
			return nil
		}
		return &api.FieldError{
			Field: "--output", Value: *to, Err: errors.New("there is no such format"),
			Hint: "the formats are " + strings.Join(words, ", "),
		}
	}
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// writeTable writes rows in aligned columns, two spaces apart and none at a
// line's end.
func writeTable(w io.Writer, rows [][]string) error {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// delays says what is delayed in as few words as will do: "5ms" if all is
// alike, "none", or each op with one.
func delays(d api.Delays) string {
	all := [][2]string{{"read", d.Read}, {"write", d.Write}, {"flush", d.Flush}, {"discard", d.Discard}}
	if d.WriteZeroes != d.Write {
		all = append(all, [2]string{"write-zeroes", d.WriteZeroes})
	}
	same := true
	var words []string
	for _, one := range all {
		same = same && one[1] == d.Read
		if one[1] != "0s" {
			words = append(words, one[0]+" "+one[1])
		}
	}
	switch {
	case len(words) == 0:
		return "none"
	case same:
		return d.Read
	}
	return strings.Join(words, ", ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
