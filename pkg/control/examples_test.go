package control

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/go-yaml"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"

	"github.com/delayd/delayd/pkg/api"
)

// examplesOf returns what a media type shows, as JSON.
func examplesOf(t *testing.T, media *v3.MediaType) []string {
	t.Helper()
	var nodes []*yaml.Node
	if media.Example != nil {
		nodes = append(nodes, media.Example)
	}
	for _, e := range fromOldest(media.Examples) {
		nodes = append(nodes, e.Value)
	}
	var all []string
	for _, n := range nodes {
		var v any
		if err := n.Decode(&v); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return all
}

func fromOldest(m *orderedmap.Map[string, *base.Example]) map[string]*base.Example {
	out := map[string]*base.Example{}
	for name, e := range m.FromOldest() {
		out[name] = e
	}
	return out
}

// TestExamplesAreOfTheirSchemas holds the document's examples to the document,
// and those of a Spec to what the server takes.
func TestExamplesAreOfTheirSchemas(t *testing.T) {
	doc := readDocument(t)
	count := 0
	for path, item := range doc.model.Paths.PathItems.FromOldest() {
		url := "http://delayd" + strings.ReplaceAll(path, "{name}", "slow")
		for method, op := range item.GetOperations().FromOldest() {
			for code, response := range op.Responses.Codes.FromOldest() {
				for kind, media := range response.Content.FromOldest() {
					for _, text := range examplesOf(t, media) {
						count++
						status, err := strconv.Atoi(code)
						if err != nil {
							t.Fatal(err)
						}
						req, err := http.NewRequest(strings.ToUpper(method), url, nil)
						if err != nil {
							t.Fatal(err)
						}
						resp := &http.Response{StatusCode: status, Header: http.Header{
							"Content-Type": {kind}, "Location": {"/v1/devices/slow"},
						}, Body: io.NopCloser(bytes.NewReader([]byte(text)))}
						if ok, errs := doc.validator.ValidateHttpResponse(req, resp); !ok {
							t.Errorf("%s %s %s: %v\n%s", method, path, code, errs[0], text)
						}
					}
				}
			}
		}
	}
	post, _ := doc.model.Paths.PathItems.Get(api.PathDevices)
	body, _ := post.Post.RequestBody.Content.Get(api.MediaType)
	for _, text := range examplesOf(t, body) {
		count++
		req, err := http.NewRequest(http.MethodPost, "http://delayd"+api.PathDevices, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", api.MediaType)
		if ok, errs := doc.validator.ValidateHttpRequest(req); !ok {
			t.Errorf("%v\n%s", errs[0], text)
		}
		s, err := api.DecodeSpec([]byte(text))
		if err == nil {
			err = s.Validate(2)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	if count < 10 {
		t.Errorf("only %d examples were found", count)
	}
}
